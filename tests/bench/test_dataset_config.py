import argparse
import subprocess
import sys

import pytest

from pelton.bench.dataset_config import (
    DATASETS,
    DatasetConfig,
    add_dataset_flags,
    dataset_from_flags,
    needs_tokenizer,
)


def from_flags(*arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_dataset_flags(parser.add_argument_group("dataset"))
    return dataset_from_flags(parser.parse_args(arguments))


def test_without_flags_everything_has_its_default():
    assert from_flags() == DatasetConfig()


def test_flags_set_their_fields():
    config = from_flags(
        "--num-prompts", "7", "--seed", "3", "--random-input-len", "20", "--random-output-len", "5",
        "--random-range-ratio", "0.5", "--random-prefix-len", "9", "--no-oversample",
    )  # fmt: skip
    assert config == DatasetConfig(
        num_prompts=7,
        seed=3,
        random_input_len=20,
        random_output_len=5,
        random_range_ratio=0.5,
        random_prefix_len=9,
        no_oversample=True,
    )


@pytest.mark.parametrize(
    ("dataset", "flags", "named"),
    [
        ("random", ["--sharegpt-output-len", "5"], "--sharegpt-output-len"),
        ("random", ["--prefix-repetition-num-prefixes", "5"], "--prefix-repetition-num-prefixes"),
        ("builtin", ["--random-range-ratio", "0.1"], "--random-range-ratio"),
        ("builtin", ["--custom-output-len", "256"], "--custom-output-len"),
        ("sharegpt", ["--dataset-path", "x", "--builtin-output-len", "1"], "--builtin-output-len"),
    ],
)
def test_flags_of_another_dataset_are_refused_by_name(dataset, flags, named):
    with pytest.raises(ValueError, match=rf"^{named} is given, but it is for dataset .*dataset is {dataset};"):
        from_flags("--dataset-name", dataset, *flags)


def test_they_are_refused_where_the_dataset_is_the_default_too():
    with pytest.raises(ValueError, match=r"--builtin-output-len is given.*add --dataset-name builtin"):
        from_flags("--builtin-output-len", "5")


def test_input_len_is_that_of_random():
    assert from_flags("--input-len", "50").random_input_len == 50


@pytest.mark.parametrize(
    ("dataset", "field"),
    [
        ("random", "random_output_len"),
        ("prefix_repetition", "prefix_repetition_output_len"),
        ("sharegpt", "sharegpt_output_len"),
        ("custom", "custom_output_len"),
        ("builtin", "builtin_output_len"),
    ],
)
def test_output_len_is_that_of_the_chosen_dataset(dataset, field):
    path = ["--dataset-path", "file"] if dataset in ("sharegpt", "custom") else []
    config = from_flags("--dataset-name", dataset, "--output-len", "17", *path)
    assert getattr(config, field) == 17
    others = {f"{name}_output_len" for name in DATASETS} - {field}
    assert all(getattr(config, other) == getattr(DatasetConfig(), other) for other in others)


@pytest.mark.parametrize("dataset", ["prefix_repetition", "sharegpt", "custom", "builtin"])
def test_input_len_is_refused_where_prompts_have_no_such_length(dataset):
    with pytest.raises(ValueError, match=f"--input-len is given, but prompts of dataset {dataset}"):
        from_flags("--dataset-name", dataset, "--dataset-path", "file", "--input-len", "5")


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_length_given_twice_is_refused(kind):
    with pytest.raises(ValueError, match=f"--{kind}-len and --random-{kind}-len are both given"):
        from_flags(f"--{kind}-len", "5", f"--random-{kind}-len", "5")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset_name": "sonnet"}, "dataset_name must be one of random, "),
        ({"dataset_name": "custom"}, "there is no file; name one with --dataset-path FILE"),
        ({"dataset_name": "sharegpt"}, "there is no file; name one with --dataset-path FILE"),
        ({"dataset_path": "x.json"}, "dataset random reads no file; .* set dataset_name to sharegpt or custom"),
        ({"dataset_name": "custom", "dataset_path": ""}, "dataset_path must be the name of a file"),
        ({"num_prompts": 0}, "num_prompts must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"random_input_len": 0}, "random_input_len must be at least 1"),
        ({"random_output_len": 0}, "random_output_len must be at least 1"),
        ({"random_prefix_len": -1}, "random_prefix_len must be at least 0"),
        ({"random_range_ratio": 1.0}, "random_range_ratio must be at least 0 and below 1, got 1.0"),
        ({"random_range_ratio": -0.1}, "random_range_ratio must be at least 0 and below 1, got -0.1"),
        ({"random_range_ratio": float("nan")}, "random_range_ratio must be a finite number"),
        ({"prefix_repetition_suffix_len": 0}, "prefix_repetition_suffix_len must be at least 1"),
        ({"sharegpt_output_len": 0}, "sharegpt_output_len must be at least 1"),
        ({"custom_output_len": -2}, "custom_output_len must be at least 1"),
        ({"builtin_output_len": 0}, "builtin_output_len must be at least 1"),
        ({"no_oversample": 1}, "no_oversample must be True or False"),
        (
            {"dataset_name": "prefix_repetition", "num_prompts": 9},
            "prefix_repetition_num_prefixes is 10, but num_prompts is 9",
        ),
    ],
)
def test_bad_values_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        DatasetConfig(**fields)


def test_datasets_of_token_ids_or_counts_need_a_tokenizer():
    needing = [
        name
        for name in DATASETS
        if needs_tokenizer(DatasetConfig(name, "file" if name in ("sharegpt", "custom") else None))
    ]
    assert needing == ["random", "prefix_repetition", "sharegpt"]


def test_flags_do_without_numpy():
    code = (
        "import argparse, sys, pelton.bench.dataset_config as c; p = argparse.ArgumentParser(); "
        "c.add_dataset_flags(p); p.format_help(); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
