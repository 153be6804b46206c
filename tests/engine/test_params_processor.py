"""Parameters that do not fit the model meet one clear sentence, and the others reach the core complete."""

from datetime import date
from typing import Any

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.config import SamplingConfig, StructuredOutputsConfig
from pelton.engine.params_processor import ParamsProcessor
from pelton.loader import open_checkpoint
from pelton.sampling.logits_processor import LogitsProcessor, RowProcessor
from pelton.sampling_params import StructuredOutputsParams
from pelton.tokenizer import Tokenizer, load_tokenizer
from tests.support.nested import nested
from tests.support.vocabularies import vocabulary_tokenizer

VOCAB_SIZE = 49152
EOS = 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(open_checkpoint("smollm2"))


def make_processor(tokenizer: Tokenizer, **changes: Any) -> ParamsProcessor:
    options = {"vocab_size": VOCAB_SIZE, "logits_processors": (), "eos_token_ids": [EOS, 0]}
    sampling = SamplingConfig(max_logprobs=changes.pop("max_logprobs", 5))
    structured_outputs = StructuredOutputsConfig(**changes.pop("structured_outputs", {}))
    return ParamsProcessor(sampling, tokenizer, structured_outputs=structured_outputs, **(options | changes))


@pytest.mark.parametrize(
    ("settings", "given", "expected"),
    [
        ({}, {}, {"disable_additional_properties": True}),
        ({}, {"disable_additional_properties": False}, {"disable_additional_properties": False}),
        ({"disable_any_whitespace": True}, {}, {"disable_any_whitespace": True}),
        ({"disable_any_whitespace": True}, {"whitespace_pattern": " ?"}, {"whitespace_pattern": " ?"}),
        ({"disable_additional_properties": False}, {}, {"disable_additional_properties": False}),
        (
            {"disable_additional_properties": False},
            {"disable_additional_properties": True},
            {"disable_additional_properties": True},
        ),
        ({}, {"disable_any_whitespace": True}, {"disable_any_whitespace": True}),
    ],
)
def test_the_engines_settings_of_structured_output(tokenizer, settings, given, expected):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "object"}, **given))
    processed, _ = make_processor(tokenizer, structured_outputs=settings).process(params)
    assert processed.structured_outputs == StructuredOutputsParams(
        json={"type": "object"}, backend="llguidance", **{"disable_additional_properties": True} | expected
    )
    assert params.structured_outputs.backend == "auto"  # the caller's own is left alone


def test_a_constraint_that_cannot_be_kept(tokenizer):
    structured = StructuredOutputsParams(json={"type": "array", "uniqueItems": True})
    check_refusal(make_processor(tokenizer), {"structured_outputs": structured}, ["structured_outputs", "uniqueItems"])


def check_refusal(processor: ParamsProcessor, fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        processor.process(SamplingParams(**fields))
    message = str(caught.value)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert len(message) < 350


@pytest.mark.parametrize("wrong", [VOCAB_SIZE, 2**40, 2**63 - 1])
def test_ids_outside_the_vocabulary(tokenizer: Tokenizer, wrong: int) -> None:
    processor = make_processor(tokenizer)
    for name in ("stop_token_ids", "allowed_token_ids"):
        check_refusal(processor, {name: [1, wrong]}, [f"token id {wrong} in {name}", "0 to 49151"])
    check_refusal(processor, {"logit_bias": {wrong: 1.0}}, [f"token id {wrong} in logit_bias", "0 to 49151"])


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize(
    ("max_logprobs", "asked", "expected"),
    [
        (5, None, None),
        (5, 0, 0),
        (5, 5, 5),
        (0, 0, 0),
        (-1, 5, 5),
        (-1, VOCAB_SIZE, VOCAB_SIZE),
        (-1, -1, VOCAB_SIZE),
        (VOCAB_SIZE, -1, VOCAB_SIZE),
        (10**6, -1, VOCAB_SIZE),
    ],
)
def test_numbers_of_logprobs(
    tokenizer: Tokenizer, name: str, max_logprobs: int, asked: int | None, expected: int | None
) -> None:
    given = SamplingParams(**{name: asked})
    params, _ = make_processor(tokenizer, max_logprobs=max_logprobs).process(given)
    assert getattr(params, name) == expected
    assert getattr(given, name) == asked


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize(
    ("max_logprobs", "asked", "words"),
    [
        (5, 6, ["is 6", "max_logprobs allows 5", "larger max_logprobs"]),
        (0, 1, ["is 1", "max_logprobs allows 0"]),
        (5, -1, ["is -1", "whole vocabulary, 49152 tokens", "max_logprobs allows 5"]),
        (VOCAB_SIZE - 1, -1, ["is -1", "max_logprobs allows 49151"]),
        (-1, VOCAB_SIZE + 1, ["is 49153", "the vocabulary has 49152 tokens", "-1"]),
        (10**6, 10**5, ["is 100000", "the vocabulary has 49152 tokens"]),
    ],
)
def test_too_many_logprobs(tokenizer: Tokenizer, name: str, max_logprobs: int, asked: int, words: list[str]) -> None:
    check_refusal(make_processor(tokenizer, max_logprobs=max_logprobs), {name: asked}, [name, *words])


def test_bad_words_are_found_wherever_they_stand(tokenizer: Tokenizer) -> None:
    _, bad_words = make_processor(tokenizer).process(SamplingParams(bad_words=["dog", "  dog", "two words"]))
    expected = [tokenizer.encode(text) for text in ("dog", " dog", "two words", " two words")]
    assert sorted(bad_words) == sorted(expected)


def test_bad_words_are_the_requests_own(tokenizer: Tokenizer) -> None:
    processor, params = make_processor(tokenizer), SamplingParams(bad_words=["dog"])
    _, bad_words = processor.process(params)
    kept = [list(form) for form in bad_words]
    bad_words[0].append(1)
    bad_words.pop()
    assert processor.process(params)[1] == kept


@pytest.mark.parametrize("word", ["\x04", "a\x04", " \x04"])
def test_bad_words_without_tokens(tokenizer: Tokenizer, word: str) -> None:
    """A part of a word is another word, which nobody wanted to ban."""
    check_refusal(make_processor(tokenizer), {"bad_words": ["a", word]}, ["bad_words has", repr(word), "no tokens"])


def test_bad_words_that_the_model_has_no_rows_for(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("dog") + tokenizer.encode(" dog")
    assert len(ids) == 2
    _, bad_words = make_processor(tokenizer, vocab_size=max(ids)).process(SamplingParams(bad_words=["dog"]))
    assert bad_words == [[min(ids)]]
    check_refusal(make_processor(tokenizer, vocab_size=min(ids)), {"bad_words": ["dog"]}, ["'dog'", "no tokens"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"allowed_token_ids": [EOS, 0], "min_tokens": 1}, ["[2, 0]", "end the output", "min_tokens is 1"]),
        ({"allowed_token_ids": [EOS], "min_tokens": 3}, ["allowed_token_ids is [2]", "min_tokens is 3"]),
        ({"allowed_token_ids": [7, EOS], "stop_token_ids": [7], "min_tokens": 1}, ["[7, 2]", "end the output"]),
        ({"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1, "ignore_eos": True}, ["end the output"]),
        ({"allowed_token_ids": list(range(100)), "stop_token_ids": list(range(100)), "min_tokens": 1}, ["end the"]),
        ({"allowed_token_ids": "dog", "bad_words": ["dog"]}, ["allowed_token_ids is [", "bad_words rules out all"]),
        ({"allowed_token_ids": "dog or end", "bad_words": ["dog"], "min_tokens": 1}, ["end the output"]),
    ],
)
def test_nothing_allowed(tokenizer: Tokenizer, fields: dict[str, Any], words: list[str]) -> None:
    dogs = [token_id for text in ("dog", " dog") for token_id in tokenizer.encode(text)]
    named = {"dog": dogs, "dog or end": [*dogs, EOS]}
    if isinstance(allowed := fields["allowed_token_ids"], str):
        fields = fields | {"allowed_token_ids": named[allowed]}
    check_refusal(make_processor(tokenizer), fields, words)


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": [EOS, EOS], "min_tokens": 0},
        {"allowed_token_ids": [EOS], "min_tokens": 1, "ignore_eos": True},
        {"allowed_token_ids": [EOS, 7, 7], "min_tokens": 1},
        {"allowed_token_ids": [EOS, 7], "bad_words": ["dog"]},
        {"allowed_token_ids": [7], "logit_bias": {7: -100.0}},
        {"max_tokens": 0},
    ],
)
def test_something_allowed(tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    params, _ = make_processor(tokenizer).process(SamplingParams(seed=1, **fields))
    assert params == SamplingParams(seed=1, **fields)


class Booster(LogitsProcessor):
    arguments = frozenset({"boost", "by"})

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if (params.extra_args or {}).get("by") == 0:
            raise ValueError("by is 0, which does nothing; leave it out")

    def new_request(self, params: SamplingParams) -> RowProcessor | None:
        raise NotImplementedError


class Greedy(Booster):
    arguments = frozenset()

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if params.temperature:
            raise ValueError(f"temperature is {params.temperature}, and Greedy needs 0")


def test_arguments_need_a_logits_processor(tokenizer: Tokenizer) -> None:
    processor = make_processor(tokenizer)
    check_refusal(processor, {"extra_args": {"boost": 1}}, ["extra_args has 'boost'", "no logits processor is loaded"])
    assert processor.process(SamplingParams(extra_args={}))[0].extra_args == {}


def test_unknown_arguments_are_refused(tokenizer: Tokenizer) -> None:
    processor = make_processor(tokenizer, logits_processors=[Greedy, Booster])
    unknown = {"temperature": 0, "extra_args": {"boost": 1, "boots": 2}}
    check_refusal(processor, unknown, ["extra_args has 'boots'", "know boost, by"])
    processor = make_processor(tokenizer, logits_processors=[Greedy])
    check_refusal(processor, unknown, ["extra_args has 'boost'", "know none"])


def test_every_logits_processor_has_its_say(tokenizer: Tokenizer) -> None:
    processor = make_processor(tokenizer, logits_processors=[Booster, Greedy])
    check_refusal(processor, {"temperature": 0, "extra_args": {"by": 0}}, ["by is 0"])
    check_refusal(processor, {}, ["Greedy needs 0"])
    assert processor.process(SamplingParams(temperature=0, extra_args={"by": 1}))[0].extra_args == {"by": 1}


class Careless(Booster):
    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if (params.extra_args or {})["boost"] > 1:
            raise OSError("no\nsuch file")


@pytest.mark.parametrize(
    ("extra_args", "problem"),
    [
        (None, "KeyError: 'boost'"),
        ({"boost": "x"}, "TypeError: '>' not supported between instances of 'str' and 'int'"),
        ({"boost": 2}, "OSError: no such file"),
    ],
)
def test_whatever_a_logits_processor_raises_is_a_refusal(tokenizer: Tokenizer, extra_args: Any, problem: str) -> None:
    processor = make_processor(tokenizer, logits_processors=[Careless])
    words = f"the logits processor Careless cannot check the parameters: {problem}"
    check_refusal(processor, {"extra_args": extra_args}, [words])
    assert processor.process(SamplingParams(extra_args={"boost": 1}))[0].extra_args == {"boost": 1}


@pytest.mark.parametrize(
    "value", [np.zeros(2), object(), 2**64, "\ud800", nested(5000), lambda: 1], ids=lambda value: type(value).__name__
)
def test_arguments_must_be_plain_data(tokenizer: Tokenizer, value: Any) -> None:
    processor = make_processor(tokenizer, logits_processors=[Booster])
    check_refusal(processor, {"extra_args": {"boost": value}}, ["extra_args must hold plain data"])


def test_arguments_arrive_as_in_another_process(tokenizer: Tokenizer) -> None:
    given = {"boost": [1, (2.5, "é")], "by": {"on": date(2024, 5, 1), "raw": b"\x00", "none": None}}
    processor = make_processor(tokenizer, logits_processors=[Booster])
    arrived = processor.process(SamplingParams(extra_args=given))[0].extra_args
    assert arrived == {"boost": [1, [2.5, "é"]], "by": {"on": "2024-05-01", "raw": b"\x00", "none": None}}
    given["boost"].append(3)
    assert arrived["boost"] == [1, [2.5, "é"]]


def test_unknown_words_are_not_banned_as_the_unknown_token() -> None:
    tokenizer = vocabulary_tokenizer("bert-bge")
    processor = make_processor(tokenizer, vocab_size=tokenizer.vocab_size)
    check_refusal(processor, {"bad_words": ["𓂀"]}, ["'𓂀'", "no tokens"])
    assert processor.process(SamplingParams(bad_words=["[UNK]"]))[1] == [[100]]


class SilentError(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class Raising(Booster):
    error: Exception

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        raise cls.error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SilentError(), "the logits processor Raising refuses the parameters"),
        (ValueError("by is 0;\n\ud800 leave it out"), "by is 0; leave it out"),
        (ValueError("x" * 10**6), "x" * 300 + "..."),
        (
            type("Odd", (Exception,), {"__str__": None})(),
            "the logits processor Raising cannot check the parameters: Odd",
        ),
    ],
    ids=["silent", "lines", "long", "odd"],
)
def test_exceptions_of_any_kind_are_refusals(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    monkeypatch.setattr(Raising, "error", error, raising=False)
    with pytest.raises(ValueError, match=r".") as caught:
        make_processor(tokenizer, logits_processors=[Raising]).process(SamplingParams())
    assert str(caught.value) == message


class Changing(Booster):
    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        params.top_k = None
        params.stop_token_ids.append("x")
        assert params.extra_args.pop("boost") == [1]


def test_a_logits_processor_checks_a_copy(tokenizer: Tokenizer) -> None:
    given = {"top_k": 4, "seed": 3, "stop_token_ids": [5], "extra_args": {"boost": [1]}}
    params, _ = make_processor(tokenizer, logits_processors=[Changing, Changing]).process(SamplingParams(**given))
    assert params == SamplingParams(**given)
