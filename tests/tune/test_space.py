"""Which settings are tried, and which come to the same."""

import random
import re

import pytest

from pelton.tune.space import make_space


def names(space):
    return [dimension.name for dimension in space.dimensions]


def values(space, name):
    return next(dimension.values for dimension in space.dimensions if dimension.name == name)


def test_by_default():
    space = make_space([], {}, num_cores=4, max_concurrency=1000)
    assert names(space) == [
        "max_num_seqs",
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "quantization",
        "data_parallel_size",
        "num_threads",
    ]
    assert values(space, "num_threads") == (1, 2, 4)
    assert values(space, "data_parallel_size") == (1, 2, 4)
    assert values(space, "long_prefill_token_threshold")[-1] == 0  # no limit is the highest
    assert space.given(space.default) == {}
    assert space.default["num_threads"] == 4


def test_on_one_core_there_is_nothing_to_share_out():
    assert {"num_threads", "data_parallel_size"}.isdisjoint(names(make_space([], {}, 1, 1000)))


@pytest.mark.parametrize("num_cores", [2, 3, 6, 8, 48])
def test_threads_of_all_replicas_have_cores(num_cores):
    space = make_space([], {}, num_cores, 1000)
    generator = random.Random(1)
    seen = []
    for _ in range(200):
        settings = space.draw(generator, seen)
        if settings is None:
            break
        assert settings == space.normal(settings)
        assert settings["num_threads"] * settings["data_parallel_size"] <= num_cores
        assert all(settings[one.name] in one.values for one in space.dimensions)
        assert settings not in seen
        seen.append(settings)
    assert len({(one["num_threads"], one["data_parallel_size"]) for one in seen}) >= 3


def test_what_is_named_only():
    space = make_space(["max-num-seqs=16,64", "enable_prefix_caching=true,false"], {}, 8, 1000)
    assert names(space) == ["max_num_seqs", "enable_prefix_caching"]
    assert values(space, "max_num_seqs") == (16, 64, 256)  # with the default
    assert space.given({"max_num_seqs": 256, "enable_prefix_caching": False}) == {"enable_prefix_caching": False}


def test_what_is_fixed_is_not_sought():
    space = make_space([], {"max_num_seqs": 16, "num_threads": 2, "max_num_batched_tokens": 256}, 8, 1000)
    assert {"max_num_seqs", "num_threads", "max_num_batched_tokens"}.isdisjoint(names(space))
    assert values(space, "data_parallel_size") == (1, 2, 4)  # of two threads each
    assert space.normal(space.default | {"long_prefill_token_threshold": 256}) == space.default


def test_what_the_server_refuses_is_not_tried():
    assert "quantization" not in names(make_space([], {"dtype": "float32"}, 1, 1000))
    space = make_space(["quantization=auto,int8", "dtype=float32,auto"], {}, 1, 1000)
    generator, tried = random.Random(1), []
    while (settings := space.draw(generator, tried)) is not None:
        tried.append(settings)
    assert len(tried) == 3
    assert {"quantization": "int8", "dtype": "float32"} not in tried


def test_the_same_in_other_words():
    space = make_space([], {}, num_cores=4, max_concurrency=100)
    default = space.default
    assert space.normal(default | {"max_num_seqs": 128}) == default  # both more than are ever under way
    assert space.normal(default | {"max_num_seqs": 64}) != default
    small = default | {"max_num_batched_tokens": 512}
    assert space.normal(small | {"long_prefill_token_threshold": 512}) == small
    assert space.normal(small | {"long_prefill_token_threshold": 256}) != small
    two = space.normal(default | {"data_parallel_size": 2})
    assert two["num_threads"] == 2
    assert space.given(two) == {"data_parallel_size": 2}


def test_all_are_drawn_in_the_end():
    space = make_space(["max_num_seqs=16,64", "quantization=int8"], {}, 2, 1000)
    tried = [space.default]
    while (settings := space.draw(random.Random(len(tried)), tried)) is not None:
        tried.append(settings)
    assert len(tried) == 3 * 2


@pytest.mark.parametrize(
    ("search", "fixed", "message"),
    [
        (["max_num_seqs"], {}, "--search max_num_seqs: it must be NAME=VALUE,VALUE"),
        (["seqs=1"], {}, "--search seqs=1: 'seqs' is no flag of pelton serve"),
        (["max_num_seqs=many"], {}, "--search max_num_seqs=many: argument --max-num-seqs: invalid int value: 'many'"),
        (["max_num_seqs=0"], {}, "--search max_num_seqs=0: max_num_seqs must be at least 1, got 0"),
        (["quantization=int3"], {}, "quantization must be one of auto, none, int8, int4, got 'int3'"),
        (["port=1,2"], {}, "--port cannot be given: each trial's server has an address of its own"),
        (["api_key=a"], {}, "--api-key cannot be given"),
        (["revision=a,b"], {}, "--search revision=a,b: it is one model that is tuned; give --revision after --"),
        (["served_model_name=a"], {}, "served_model_name takes lists, which cannot be sought"),
        (["check_nan=yes"], {}, "check_nan must be true or false, got 'yes'"),
        (["max_num_seqs=1", "max_num_seqs=2"], {}, "--search max_num_seqs is given twice"),
        (["max_num_seqs=1"], {"max_num_seqs": 2}, "--search max_num_seqs is given, but max_num_seqs is fixed after --"),
        (
            ["num_threads=1,4"],
            {},
            "goes up to 4, but data_parallel_size is 1 and there are 2 cores",
        ),
        (
            ["data_parallel_size=2"],
            {"num_threads": 2},
            "goes up to 2, but num_threads is 2 and there are 2 cores",
        ),
        (["max_num_seqs=256"], {}, "there is nothing to seek"),
    ],
)
def test_refused(search, fixed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_space(search, fixed, num_cores=2, max_concurrency=1000)
