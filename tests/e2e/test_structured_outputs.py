"""Constraints on a real model: the promise, one answer, and what it costs nobody else."""

import json
import re

import pytest

from pelton import LLM, SamplingParams
from pelton.sampling_params import GuidedDecodingParams, StructuredOutputsParams
from tests.support.engines import assert_same_bits, make_llm, trace_steps

SENTENCE = "This sucks. The sentiment of that sentence, Positive or Negative, is:"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
SQL = """
start: "SELECT " columns " FROM " NAME (" WHERE " NAME "=" NUMBER)?
columns: "*" | NAME ("," NAME)*
NAME: /[a-z]{1,8}/
NUMBER: /[0-9]{1,4}/
"""


@pytest.fixture(scope="module")
def llm():
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield make_llm(monkeypatch, model="smollm2", max_model_len=512, dtype="auto")


def structured(**constraint) -> StructuredOutputsParams:
    return StructuredOutputsParams(**constraint)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_listing_of_the_article(llm: LLM, temperature: float) -> None:
    guided = GuidedDecodingParams(choice=["Positive", "Negative"])
    (output,) = llm.generate(
        [SENTENCE], SamplingParams(temperature=temperature, seed=3, guided_decoding=guided), use_tqdm=False
    )
    assert output.outputs[0].text in ("Positive", "Negative")
    assert output.outputs[0].finish_reason == "stop"


def crowd() -> dict[str, tuple[str, SamplingParams]]:
    """Constrained requests of every kind, and free ones."""
    constraints = {
        "choice": structured(choice=["Positive", "Negative", "Neither"]),
        "regex": structured(regex=r"\d{4}-\d{2}-\d{2}T(morning|noon)"),
        "json": structured(json=PERSON),
        "compact": structured(json=PERSON, disable_any_whitespace=True),
        "object": structured(json_object=True),
        "sql": structured(grammar=SQL),
        "free": None,
    }
    return {
        f"{name} {seed}": (
            f"{SENTENCE} {name}",
            SamplingParams(
                max_tokens=90,
                seed=seed,
                temperature=0.0 if seed == 0 else 1.2,
                logprobs=2 if seed == 2 else None,
                repetition_penalty=1.1 if seed == 1 else 1.0,
                structured_outputs=constraint,
            ),
        )
        for name, constraint in constraints.items()
        for seed in range(3)
    }


def run(llm: LLM, requests):
    outputs = llm.generate([p for p, _ in requests.values()], [p for _, p in requests.values()], use_tqdm=False)
    return dict(zip(requests, outputs, strict=True))


@pytest.fixture(scope="module")
def together(llm):
    return run(llm, crowd())


def test_every_output_keeps_to_its_constraint(together) -> None:
    checks = {
        "choice": lambda text: text in ("Positive", "Negative", "Neither"),
        "regex": lambda text: re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(morning|noon)", text),
        "json": lambda text: set(json.loads(text)) == {"name", "age", "colours"},
        "compact": lambda text: text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")),
        "object": lambda text: isinstance(json.loads(text), dict),
        "sql": lambda text: re.fullmatch(r"SELECT (\*|[a-z,]+) FROM [a-z]+( WHERE [a-z]+=[0-9]+)?", text),
        "free": lambda text: True,
    }
    num_ended = 0
    for name, output in together.items():
        completion = output.outputs[0]
        assert completion.finish_reason in ("stop", "length"), completion.stop_reason
        if completion.finish_reason == "stop":
            num_ended += 1
            assert checks[name.split()[0]](completion.text), (name, completion.text)
    assert num_ended >= 12


def test_one_answer(llm: LLM, together) -> None:
    """Alone, each request gives the same bits as among the others."""
    requests = crowd()
    for name in ("choice 1", "json 0", "json 2", "compact 1", "sql 1", "free 1"):
        assert_same_bits(run(llm, {name: requests[name]}), {name: together[name]})


def test_forced_tokens_save_steps(monkeypatch, llm: LLM) -> None:
    """And are the same as where every token is sampled."""
    params = {"max_tokens": 80, "seed": 5, "structured_outputs": structured(json=PERSON, disable_any_whitespace=True)}
    trace = trace_steps(monkeypatch, llm)
    (quick,) = llm.generate([SENTENCE], SamplingParams(**params), use_tqdm=False)
    num_steps = len(trace)
    (sampled,) = llm.generate([SENTENCE], SamplingParams(**params, logprobs=0), use_tqdm=False)
    assert quick.outputs[0].token_ids == sampled.outputs[0].token_ids
    assert num_steps < len(quick.outputs[0].token_ids)
    assert len(trace) - num_steps == len(sampled.outputs[0].token_ids)


def test_a_refused_constraint_costs_the_others_nothing(llm: LLM, together) -> None:
    refused = SamplingParams(structured_outputs=structured(json={"type": "array", "uniqueItems": True}))
    with pytest.raises(ValueError, match="uniqueItems"):
        llm.generate([SENTENCE, SENTENCE], [SamplingParams(), refused], use_tqdm=False)
    name = "choice 1"
    assert_same_bits(run(llm, {name: crowd()[name]}), {name: together[name]})
