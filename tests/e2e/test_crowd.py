"""A request's output does not depend on what runs beside it, whatever its parameters and theirs: bit by bit.

The logits are exact (tests/support/sampling_engine.py); everything else is the engine itself.
"""

import dataclasses
import random
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.core.outputs import RequestOutput
from pelton.sampling.logits_processor import LogitsProcessor
from pelton.sampling_params import StructuredOutputsParams
from tests.support.fakes import BREAKING
from tests.support.sampling_engine import EOS, SamplingEngine

NUM_REQUESTS = 60


class Scale(LogitsProcessor):
    """Multiplies the logits of odd tokens, more so the longer the output is."""

    arguments = frozenset({"scale"})

    def new_request(self, params):
        scale = (params.extra_args or {}).get("scale")
        if scale is None:
            return None

        def change(prompt_ids, output_ids, logits):
            logits[1::2] *= scale + 0.01 * len(output_ids) + 0.001 * len(prompt_ids)

        return change


CHOICES = {
    "presence_penalty": [-0.5, 1.0],
    "frequency_penalty": [0.3, 2.0],
    "repetition_penalty": [0.8, 1.3],
    "temperature": [0.2, 0.8, 1.5],
    "top_p": [0.3, 0.9],
    "top_k": [1, 5, 50],
    "min_p": [0.05, 0.3],
    "stop": ["ry", ["xyz", "what w"], [" the", "ac"]],
    "stop_token_ids": [[541], [732, 679]],
    "include_stop_str_in_output": [True],
    "bad_words": [["what"], ["ry", " what ry"]],
    "ignore_eos": [True],
    "max_tokens": [0, 1, 10, 40],
    "min_tokens": [0, 1, 10],
    "logprobs": [0, 1, 7],
    "prompt_logprobs": [0, 1, 7],
    "logit_bias": [{541: -100.0}, {EOS: 5.0, 732: 2.0}],
    "allowed_token_ids": [[5, 541, 732, 679, EOS], list(range(900))],
    "detokenize": [False],
    "skip_special_tokens": [False],
    "spaces_between_special_tokens": [False],
    "truncate_prompt_tokens": [3, 20],
    "structured_outputs": [
        StructuredOutputsParams(choice=["what where", "what ry", "the"]),
        StructuredOutputsParams(regex="[a-m ]{5,30}"),
        StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
        StructuredOutputsParams(grammar='start: "(" start? ")" | "x"'),
    ],
    "extra_args": [{"scale": 0.5}, {"scale": 1.5}],
    "n": [2, 3],
}
"""Every parameter but seed and output_kind, and the older name of structured_outputs."""
RULING_OUT = {"allowed_token_ids", "bad_words", "min_tokens", "stop_token_ids"}
"""What may leave a constraint no token."""


def some_params(rng: random.Random, share: float) -> SamplingParams:
    """Each parameter with this probability; contradictions are thrown away."""
    while True:
        fields = {name: rng.choice(values) for name, values in CHOICES.items() if rng.random() < share}
        if "structured_outputs" in fields:
            fields = {name: value for name, value in fields.items() if name not in RULING_OUT}
        if rng.random() < 0.3:
            fields["temperature"] = 0.0
        try:
            return SamplingParams(seed=rng.randrange(2**64), **fields)
        except ValueError:
            continue


def some_requests(seed: int) -> dict[str, tuple[list[int], SamplingParams]]:
    """Some without any parameter, some with a few, some with nearly all; prompts that share their beginnings."""
    rng = random.Random(seed)
    shared = [rng.randrange(900) for _ in range(40)]
    requests = {}
    for number in range(NUM_REQUESTS):
        prompt = shared[: rng.choice([0, 9, 33, 40])] + [rng.randrange(900) for _ in range(rng.randint(1, 9))]
        requests[f"r{number}"] = (prompt, some_params(rng, rng.choice([0.0, 0.1, 0.3, 0.9])))
    return requests


def comparable(output: RequestOutput) -> RequestOutput:
    """Without times, and without the luck of finding a cached prefix."""
    return dataclasses.replace(output, metrics=None, num_cached_tokens=0)


def assert_same(outputs: Mapping[str, RequestOutput], expected: Mapping[str, RequestOutput]) -> None:
    assert outputs.keys() == expected.keys()
    for name, output in outputs.items():
        assert comparable(output) == comparable(expected[name]), name


@pytest.fixture(scope="module")
def requests():
    """Those that the engine takes at all."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        engine = SamplingEngine(monkeypatch, processors=[Scale])
        accepted = {}
        for name, request in some_requests(11).items():
            try:
                engine.run({name: request})
            except ValueError:
                continue
            accepted[name] = request
    assert len(accepted) > 0.8 * NUM_REQUESTS
    return accepted


@pytest.fixture(scope="module")
def alone(requests):
    """Every request in an engine of its own."""
    outputs = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, request in requests.items():
            outputs |= SamplingEngine(monkeypatch, processors=[Scale]).run({name: request})
    return outputs


def test_the_requests_differ_in_every_way(requests, alone):
    """The comparison is worth something: every parameter is used, and every end occurs."""
    for name in CHOICES:
        used = sum(getattr(params, name) != getattr(SamplingParams(), name) for _, params in requests.values())
        assert used >= 3, name
    completions = [completion for output in alone.values() for completion in output.outputs]
    reasons = {(c.finish_reason, type(c.stop_reason)) for c in completions}
    assert reasons >= {("stop", int), ("stop", str), ("stop", type(None)), ("length", type(None))}
    assert sum(len(c.token_ids) for c in completions) > 500
    assert [c.stop_reason for c in completions if c.finish_reason == "error"] == []


@pytest.mark.parametrize(
    "engine_args",
    [
        {},
        {"enable_prefix_caching": False},
        {"long_prefill_token_threshold": 1},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 3},
        {"num_steps_in_flight": 2},
    ],
    ids=str,
)
def test_in_a_crowd(monkeypatch, requests, alone, engine_args):
    assert_same(SamplingEngine(monkeypatch, processors=[Scale], **engine_args).run(requests), alone)


@pytest.mark.parametrize("num_steps_in_flight", [1, 2])
def test_after_preemption(monkeypatch, requests, alone, num_steps_in_flight):
    engine = SamplingEngine(
        monkeypatch, processors=[Scale], num_gpu_blocks_override=60, num_steps_in_flight=num_steps_in_flight
    )
    assert_same(engine.run(requests), alone)
    assert engine.core.scheduler.num_preemptions >= 2


def test_beside_other_neighbours(monkeypatch, requests, alone):
    """The same requests among others, in another order, with one on which the model breaks."""
    others = {f"x{name}": request for name, request in some_requests(12).items()}
    engine = SamplingEngine(monkeypatch, processors=[Scale])
    everything = dict(reversed((others | requests).items()))
    accepted = {}
    for name, (prompt, params) in everything.items():
        try:
            engine.engine._input_processor.process(prompt, params, request_id=name)
        except ValueError:
            continue
        accepted[name] = (prompt, params)
    broken = engine.run({"broken": ([1, BREAKING], SamplingParams()), **accepted})
    assert broken.pop("broken").outputs[0].finish_reason == "error"
    assert_same({name: output for name, output in broken.items() if name in requests}, alone)


def test_streamed_pieces_add_up(monkeypatch, requests, alone):
    engine = SamplingEngine(monkeypatch, processors=[Scale]).engine
    texts: dict[str, dict[int, str]] = {name: {} for name in requests}
    tokens: dict[str, dict[int, list[int]]] = {name: {} for name in requests}
    for name, (prompt, params) in requests.items():
        fields = {f: getattr(params, f) for f in params.__struct_fields__} | {"output_kind": 1}
        engine.add_request(prompt, SamplingParams(**fields), request_id=name)
    while engine.num_unfinished_requests:
        for output in engine.step():
            for completion in output.outputs:
                pieces, ids = texts[output.request_id], tokens[output.request_id]
                pieces[completion.index] = pieces.get(completion.index, "") + completion.text
                ids[completion.index] = ids.get(completion.index, []) + list(completion.token_ids)
    for name, output in alone.items():
        for completion in output.outputs:
            assert texts[name][completion.index] == completion.text, name
            assert tokens[name][completion.index] == completion.token_ids, name


# ------------------------------------------------------------------------------------------------ seeds and choices


def test_choices_differ_and_do_not_depend_on_their_number(monkeypatch):
    prompt = [5, 6, 7, 8, 9]
    params = {"seed": 7, "max_tokens": 20, "ignore_eos": True, "logprobs": 2}
    outputs = SamplingEngine(monkeypatch, num_gpu_blocks_override=60, max_num_seqs=4).run(
        {f"n={n}": (prompt, SamplingParams(n=n, **params)) for n in (1, 4, 8)}
    )
    eight = outputs["n=8"].outputs
    assert [completion.index for completion in eight] == list(range(8))
    assert len({tuple(completion.token_ids) for completion in eight}) == 8
    assert outputs["n=4"].outputs == eight[:4]
    assert outputs["n=1"].outputs == eight[:1]


def test_unseeded_runs_differ_and_global_generators_are_left_alone(monkeypatch):
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    engine = SamplingEngine(monkeypatch)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    outputs = engine.run({str(number): ([5, 6, 7], params) for number in range(10)})
    assert len({tuple(output.outputs[0].token_ids) for output in outputs.values()}) == 10
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_positions_do_not_share_random_numbers(monkeypatch):
    """With the same logits at every position (all mass on two tokens), the draws look independent."""
    params = SamplingParams(
        seed=3, max_tokens=100, ignore_eos=True, allowed_token_ids=[5, 6], logit_bias={5: 0.0}, temperature=1e6
    )
    tokens = SamplingEngine(monkeypatch).run({"a": ([1], params)})["a"].outputs[0].token_ids
    changes = sum(a != b for a, b in pairwise(tokens))
    assert 30 < changes < 70
    assert 30 < tokens.count(5) < 70
