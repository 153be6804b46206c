"""`LLM.beam_search`: what it takes, what it refuses, and what is left when it fails."""

import pytest

from pelton import LLM, SamplingParams
from pelton.sampling_params import BeamSearchParams
from pelton.tokenizer import Tokenizer
from tests.support.engines import core_of, num_finished, trace_steps
from tests.support.tiny_llama import VOCAB_SIZE, tiny_llama

BEAMS = BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    return LLM(model=tiny_llama(), max_model_len=64, num_gpu_blocks_override=60)


@pytest.fixture(autouse=True)
def empty_afterwards(llm):
    yield
    assert llm.llm_engine.num_unfinished_requests == 0
    core = core_of(llm)
    assert core.scheduler.requests == {}
    assert core.kv.pool.num_free == core.kv.pool.num_usable


def sequences(outputs):
    return [[(s.tokens, pytest.approx(s.cum_logprob, abs=1e-3)) for s in output.sequences] for output in outputs]


def test_beam_search_takes_prompts_in_every_form(llm):
    text = "The capital of France is"
    ids = llm.get_tokenizer().encode(text)
    forms = [text, [text], {"prompt": text}, {"prompt_token_ids": ids}, ids, [ids]]
    found = [llm.beam_search(form, BEAMS) for form in forms]
    for outputs in found:
        assert sequences(outputs) == sequences(found[0])
    for sequence in found[0][0].sequences:
        assert sequence.tokens[: len(ids)] == ids
        assert len(sequence.tokens) == len(ids) + 4
        assert sequence.text == llm.get_tokenizer().decode(sequence.tokens, skip_special_tokens=False)
        assert len(sequence.logprobs) == 4
        assert all(entry.decoded_token for entry in sequence.logprobs[0].values())
    assert llm.beam_search([], BEAMS) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_beam_search_in_turns_finds_the_same(llm, monkeypatch, limit):
    prompts = ["One two three", {"prompt": "The sun"}, [504, 3575]]
    together = llm.beam_search(prompts, BEAMS)
    trace, finished = trace_steps(monkeypatch, llm), num_finished(llm)
    assert sequences(llm.beam_search(prompts, BEAMS, concurrency_limit=limit)) == sequences(together)
    assert max(len(step.request_ids) for step in trace) <= limit * BEAMS.beam_width
    assert num_finished(llm)["abort"] == finished["abort"], "what was only checked does not count"
    assert num_finished(llm)["length"] - finished["length"] == 3 * (1 + 3 * BEAMS.beam_width)


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("bad", ["", [49152], [1] * 64, {"prompt": "a", "cache_salt": ""}, None])
def test_one_bad_prompt_stops_every_search_before_any_runs(llm, monkeypatch, bad, limit):
    trace, finished = trace_steps(monkeypatch, llm), num_finished(llm)
    with pytest.raises(ValueError, match=r"^prompt 2: "):
        llm.beam_search(["Hello", "The sun", bad], BEAMS, concurrency_limit=limit)
    assert trace == []
    assert num_finished(llm) == finished


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_refused_concurrency_limits(llm, limit):
    with pytest.raises(ValueError, match="concurrency_limit must be"):
        llm.beam_search(["Hello"], BEAMS, concurrency_limit=limit)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (SamplingParams(), "params must be BeamSearchParams, got SamplingParams"),
        (BeamSearchParams(beam_width=11, max_tokens=1), "beam_width is 11, .* max_logprobs allows 20"),
        (BeamSearchParams(beam_width=2, max_tokens=1, temperature=0.7), "temperature is 0.7"),
    ],
)
def test_refused_beam_searches(llm, params, words):
    with pytest.raises(ValueError, match=words):
        llm.beam_search(["Hello"], params)


def test_parameters_that_were_changed_are_checked_again(llm, monkeypatch):
    trace = trace_steps(monkeypatch, llm)
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    params.beam_width = "x"
    with pytest.raises(ValueError, match=r"^beam_width must be an integer, got 'x'$"):
        llm.beam_search(["Hello"], params)
    assert trace == []


def test_a_beam_may_not_be_wider_than_the_models_logits(monkeypatch):
    """How many tokens the tokenizer has does not matter."""
    llm = LLM(model=tiny_llama(), max_model_len=64, max_logprobs=-1)
    assert llm.llm_engine.vocab_size == VOCAB_SIZE
    monkeypatch.setattr(Tokenizer, "vocab_size", 10**6)
    params = BeamSearchParams(beam_width=VOCAB_SIZE // 2 + 1, max_tokens=1)
    words = f"^beam_width is 24577, .* of 49154 tokens, but the model has {VOCAB_SIZE}; choose a smaller beam_width$"
    with pytest.raises(ValueError, match=words):
        llm.beam_search("Hello", params)


def test_beam_search_reads_the_prefix_from_the_cache_of_its_salt(llm, monkeypatch):
    """Every step computes little more than the new tokens, and a salt keeps even a search's own blocks apart."""
    trace = trace_steps(monkeypatch, llm)
    for salt in ({}, {"cache_salt": "a"}, {}):
        llm.beam_search({"prompt_token_ids": list(range(300, 340)), **salt}, BEAMS)
    counts = [step.total_num_scheduled_tokens for step in trace]
    assert counts == [40, 18, 20, 22, 40, 18, 20, 22, 8, 18, 20, 22]


def test_a_beam_search_in_which_a_step_fails(llm, monkeypatch):
    """It ends with what it has; a search whose steps go well is not concerned."""
    worker = core_of(llm)._executor._worker
    execute, calls = worker.execute, []

    def broken(step):
        calls.append(step)
        if len(calls) == 3:
            raise RuntimeError("the model broke")
        return execute(step)

    monkeypatch.setattr(worker, "execute", broken)
    failed, well = llm.beam_search(["Hello", "The sun"], BEAMS, concurrency_limit=1)
    assert [len(s.logprobs) for s in failed.sequences] == [2, 2]
    assert {(s.finish_reason, s.stop_reason) for s in failed.sequences} == {("error", "RuntimeError: the model broke")}
    assert {s.finish_reason for s in well.sequences} == {"length"}
    assert sequences([well]) == sequences(llm.beam_search("The sun", BEAMS))
