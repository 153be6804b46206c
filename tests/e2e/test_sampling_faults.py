"""Faults of sampling and text that users of such engines have reported, provoked on purpose."""

import json
import math
import re

import pytest

from pelton import SamplingParams
from pelton.cli.jsonl_format import answer, to_line
from pelton.core.outputs import RequestOutput
from pelton.sampling.logits_processor import LogitsProcessor
from pelton.sampling_params import RequestOutputKind
from tests.support.fakes import BREAKING
from tests.support.sampling_engine import EOS, MODEL_VOCAB_SIZE, SamplingEngine
from tests.support.tiny_llama import smollm2_tokenizer

PROMPT = [5, 6, 7]
GREEDY = {"temperature": 0.0, "max_tokens": 30}


class Force(LogitsProcessor):
    """Makes the request generate the tokens in `extra_args["force"]`, then whatever comes."""

    arguments = frozenset({"force"})

    def new_request(self, params):
        forced = (params.extra_args or {}).get("force")
        if forced is None:
            return None

        def change(prompt_ids, output_ids, logits):
            if len(output_ids) < len(forced):
                logits[forced[len(output_ids)]] = 1e9

        return change


def byte_tokens(text: str) -> list[int]:
    """A token for every byte."""
    tokenizer = smollm2_tokenizer()
    by_bytes = {tokenizer._all_bytes[token_id]: token_id for token_id in range(MODEL_VOCAB_SIZE - 1)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


def streamed(engine: SamplingEngine, requests: dict) -> dict[str, list[RequestOutput]]:
    """All outputs of requests with DELTA outputs, by id."""
    outputs: dict[str, list[RequestOutput]] = {name: [] for name in requests}
    for name, (prompt, params) in requests.items():
        params.output_kind = RequestOutputKind.DELTA
        engine.engine.add_request(prompt, params, request_id=name)
    while engine.engine.num_unfinished_requests:
        for output in engine.engine.step():
            outputs[output.request_id].append(output)
    return outputs


# -------------------------------------------------------------------------------------------- 1: stop strings


@pytest.mark.parametrize("include", [False, True])
def test_every_substring_of_an_output_as_stop_string(monkeypatch, include):
    """The text is cut at the first match, streamed or not; nothing of it is shown too early (fault 1)."""
    engine = SamplingEngine(monkeypatch)
    full = engine.run({"a": (PROMPT, SamplingParams(**GREEDY))})["a"].outputs[0].text
    stops = sorted({full[i:j] for i in range(0, len(full), 3) for j in range(i + 1, min(i + 25, len(full)))})
    assert len(stops) > 200
    requests = {
        stop: (PROMPT, SamplingParams(**GREEDY, stop=stop, include_stop_str_in_output=include)) for stop in stops
    }
    for stop, pieces in streamed(engine, requests).items():
        last = pieces[-1].outputs[0]
        assert (last.finish_reason, last.stop_reason) == ("stop", stop)
        expected = full[: full.index(stop) + (len(stop) if include else 0)]
        assert "".join(piece.outputs[0].text for piece in pieces) == expected, stop


def test_what_could_have_become_a_stop_string_is_shown_at_the_end(monkeypatch):
    engine = SamplingEngine(monkeypatch)
    full = engine.run({"a": (PROMPT, SamplingParams(**GREEDY))})["a"].outputs[0].text
    stop = full[-10:] + "never"
    pieces = streamed(engine, {"a": (PROMPT, SamplingParams(**GREEDY, stop=stop))})["a"]
    assert "".join(piece.outputs[0].text for piece in pieces) == full
    assert pieces[-1].outputs[0].finish_reason == "length"


# ----------------------------------------------------------------------------------------- 2: split characters


@pytest.mark.parametrize("text", ["🚀", "👩‍🚀 é", "naïve café", "日本", "a\u0301"])
def test_characters_that_come_byte_by_byte(monkeypatch, text):
    """No replacement character for what later bytes complete; the pieces make up the text (fault 2)."""
    engine = SamplingEngine(monkeypatch, processors=[Force])
    ids = byte_tokens(text)
    params = SamplingParams(temperature=0.0, max_tokens=len(ids), extra_args={"force": ids})
    pieces = streamed(engine, {"a": (PROMPT, params)})["a"]
    assert [piece.outputs[0].token_ids for piece in pieces] == [[token_id] for token_id in ids]
    assert [piece.outputs[0].text for piece in pieces if piece.outputs[0].text] == list(text)


def test_a_prompt_that_ends_inside_a_character(monkeypatch):
    """Its bytes are not in the output (fault 2)."""
    engine = SamplingEngine(monkeypatch, processors=[Force])
    ids = byte_tokens("🚀x")
    params = SamplingParams(temperature=0.0, max_tokens=3, extra_args={"force": ids[2:]}, logprobs=0)
    pieces = streamed(engine, {"a": (byte_tokens("Prompt text ") + ids[:2], params)})["a"]
    text = "".join(piece.outputs[0].text for piece in pieces)
    assert text == smollm2_tokenizer().decode(ids[2:])
    assert text.endswith("x")
    assert "Prompt" not in text


def test_a_character_that_is_cut_off(monkeypatch):
    engine = SamplingEngine(monkeypatch, processors=[Force])
    ids = byte_tokens("é🚀")[:-1]
    params = SamplingParams(temperature=0.0, max_tokens=len(ids), extra_args={"force": ids})
    assert engine.run({"a": (PROMPT, params)})["a"].outputs[0].text == "é\N{REPLACEMENT CHARACTER}"


# ---------------------------------------------------------------------------------------- 3: prompt logprobs


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("length", [1, 2, 33, 64, 65])
def test_prompt_logprobs_whatever_the_cache_and_the_chunks(monkeypatch, length, max_tokens):
    """Cold and warm, in chunks of any size: the same values (fault 3)."""
    prompt = [(7 * i * i) % 900 for i in range(length)]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, prompt_logprobs=2)
    results = []
    for chunk in (0, 1, 7, 16):
        engine = SamplingEngine(monkeypatch, long_prefill_token_threshold=chunk)
        engine.run({"other": (prompt, SamplingParams(temperature=0.0, max_tokens=1))})  # fills the cache
        results += [engine.run({name: (prompt, params)})[name] for name in ("cold", "warm")]
    first = results[0]
    assert first.prompt_logprobs[0] is None
    assert len(first.prompt_logprobs) == length
    for token_id, entries in zip(prompt[1:], first.prompt_logprobs[1:], strict=True):
        assert next(iter(entries)) == token_id
        assert {entry.rank for entry in entries.values()} >= {1, 2}
        assert sum(math.exp(entry.logprob) for entry in entries.values()) < 1.0001
    assert len(first.outputs[0].token_ids) == max_tokens
    for result in results[1:]:
        assert result.prompt_logprobs == first.prompt_logprobs
        assert result.outputs == first.outputs


# ------------------------------------------------------------------------------------------- 4: logprob values


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 1},
        {"allowed_token_ids": [5, 541]},
        {"logit_bias": {541: -100.0, 732: -100.0}},
        {"temperature": 0.0, "logit_bias": {EOS: 100.0}, "min_tokens": 5},
        {"top_p": 0.01, "min_p": 1.0},
        {"temperature": 1e-30},
        {"temperature": 1e30, "repetition_penalty": 1e-30},
    ],
    ids=str,
)
def test_logprobs_are_finite_and_hold_the_sampled_token(monkeypatch, mode, fields):
    """In every mode, whatever is ruled out (fault 4)."""
    engine = SamplingEngine(monkeypatch, logprobs_mode=mode)
    requests = {
        str(num): (PROMPT, SamplingParams(**{"seed": 1, "max_tokens": 6, "logprobs": num} | fields))
        for num in (0, 1, 5, 20)
    }
    for name, output in engine.run(requests).items():
        completion = output.outputs[0]
        assert completion.finish_reason in ("length", "stop"), completion.stop_reason
        assert len(completion.logprobs) == len(completion.token_ids)
        for token_id, entries in zip(completion.token_ids, completion.logprobs, strict=True):
            assert next(iter(entries)) == token_id
            assert 1 <= len(entries) <= int(name) + 1
            json.dumps([entry.logprob for entry in entries.values()], allow_nan=False)
            if mode.endswith("logprobs"):
                assert all(entry.logprob <= 0.0 for entry in entries.values())
            if mode == "raw_logprobs":
                assert len(entries) >= int(name)


def test_raw_and_processed_differ_as_they_should(monkeypatch):
    """top_k 1: the sampled token has all of the processed probability, and its own of the raw one."""
    params = SamplingParams(top_k=1, seed=1, max_tokens=4, logprobs=3)
    values = {}
    for mode in ("raw_logprobs", "processed_logprobs"):
        engine = SamplingEngine(monkeypatch, logprobs_mode=mode)
        values[mode] = engine.run({"a": (PROMPT, params)})["a"].outputs[0]
    raw, processed = values["raw_logprobs"], values["processed_logprobs"]
    assert raw.token_ids == processed.token_ids
    assert processed.cumulative_logprob == 0.0
    assert raw.cumulative_logprob < -0.1
    assert [len(entries) for entries in processed.logprobs] == [1] * 4
    assert [len(entries) for entries in raw.logprobs] == [3] * 4


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
def test_what_the_model_rules_out_may_be_there_all_the_same(monkeypatch, mode):
    """As a token of the prompt, or forced by a processor: minus infinity, which JSON lines write as null."""
    engine = SamplingEngine(monkeypatch, processors=[Force], logprobs_mode=mode)
    engine.worker.model._common[[9, 11]] = -math.inf
    params = SamplingParams(**GREEDY | {"max_tokens": 1}, logprobs=2, prompt_logprobs=2, extra_args={"force": [11]})
    output = engine.run({"a": ([5, 9, 7], params)})["a"]
    positions = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    assert [(token_id, e.logprob) for p in positions for token_id, e in p.items() if not math.isfinite(e.logprob)] == [
        (9, -math.inf),
        (11, -math.inf),
    ]
    content = json.loads(to_line(answer(output, "a", 1, params)))
    assert [content["prompt_logprobs"][1]["logprob"], content["outputs"][0]["logprobs"][0]["logprob"]] == [None, None]


# ------------------------------------------------------------------------------------ 18: broken rows of logits


def test_a_row_of_nan_fails_its_own_request(monkeypatch):
    """Greedy, sampled, with masks that would hide it, with log probabilities (fault 18)."""
    variants = {
        "greedy": {"temperature": 0.0},
        "sampled": {"seed": 1},
        "top_k": {"seed": 1, "top_k": 5},
        "logprobs": {"seed": 1, "logprobs": 5},
        "masked": {"seed": 1, "allowed_token_ids": [5, 6], "logprobs": 1},
        "prompt": {"seed": 1, "prompt_logprobs": 1},
    }
    engine = SamplingEngine(monkeypatch)
    good = (PROMPT, SamplingParams(seed=9, max_tokens=20, logprobs=2))
    alone = engine.run({"good": good})["good"]
    requests = {name: ([*PROMPT, 8, BREAKING], SamplingParams(**fields)) for name, fields in variants.items()}
    requests["inside"] = ([BREAKING, 5], SamplingParams(seed=1, prompt_logprobs=0))
    outputs = engine.run(requests | {"good": good})
    for name in requests:
        completion = outputs[name].outputs[0]
        assert (completion.finish_reason, completion.token_ids) == ("error", []), name
        assert "not finite" in completion.stop_reason
    assert outputs["good"].outputs == alone.outputs


class Breaks(LogitsProcessor):
    """Fails at the token of number `extra_args["breaks"]`; before the first one if that is negative."""

    arguments = frozenset({"breaks"})

    def new_request(self, params):
        number = (params.extra_args or {}).get("breaks")
        if number is None:
            return None
        if number < 0:
            raise KeyError("negative")

        def change(prompt_ids, output_ids, logits):
            if len(output_ids) == number:
                raise RuntimeError("broken")

        return change


def test_a_processor_that_raises_fails_its_own_request(monkeypatch):
    """Beside rows that are not edited, and rows that are."""
    neighbours = {name: (PROMPT, SamplingParams(seed=9, max_tokens=9)) for name in ("first", "last")}
    neighbours["edited"] = (PROMPT, SamplingParams(seed=9, max_tokens=9, presence_penalty=1.0))
    alone = SamplingEngine(monkeypatch).run(neighbours)
    broken = {str(number): (PROMPT, SamplingParams(seed=9, extra_args={"breaks": number})) for number in (3, -1)}
    requests = {"first": neighbours["first"]} | broken | neighbours
    outputs = SamplingEngine(monkeypatch, processors=[Breaks]).run(requests)
    for name, words, num_tokens in (("3", "Breaks.*RuntimeError: broken", 3), ("-1", "Breaks.*KeyError", 0)):
        completion = outputs[name].outputs[0]
        assert (completion.finish_reason, len(completion.token_ids)) == ("error", num_tokens)
        assert re.search(words, completion.stop_reason)
    for name in neighbours:
        assert outputs[name].outputs == alone[name].outputs


def test_no_token_is_left(monkeypatch):
    engine = SamplingEngine(monkeypatch)
    tokenizer = smollm2_tokenizer()
    # Two tokens are allowed, and neither may follow any of them.
    first, second = tokenizer.encode("H")[0], tokenizer.encode("U")[0]
    params = SamplingParams(
        temperature=0.0,
        allowed_token_ids=[first, second],
        bad_words=["HH", "HU", "UH", "UU"],
        max_tokens=10,
    )
    completion = engine.run({"a": (PROMPT, params)})["a"].outputs[0]
    assert completion.finish_reason == "error"
    assert "no token is left" in completion.stop_reason
    assert len(completion.token_ids) == 1


# ----------------------------------------------------------------------------------------- 19: length of context


@pytest.mark.parametrize("max_tokens", [None, 0, 1, 64, 65, 10**9])
@pytest.mark.parametrize("length", [62, 63, 64, 65, 66])
def test_prompts_about_as_long_as_the_context(monkeypatch, length, max_tokens):
    """Too long: both numbers are named; else the output gets what is left (fault 19)."""
    monkeypatch.setattr("tests.support.sampling_engine.MAX_MODEL_LEN", 64)
    engine = SamplingEngine(monkeypatch)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    request = {"a": ([5] * length, params)}
    if length >= 64:
        with pytest.raises(ValueError, match=f"maximum context length is 64 tokens, but the prompt has {length}"):
            engine.run(request)
        return
    completion = engine.run(request)["a"].outputs[0]
    left = 64 - length
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == (left if max_tokens is None else min(left, max_tokens))
