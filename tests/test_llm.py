"""`LLM`: what it takes, what it refuses, and that it lives on after a mistake."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest
from tqdm import tqdm

from pelton import LLM, SamplingParams
from pelton.core.metrics import Histogram
from pelton.engine.chat import render_chat
from pelton.llm import as_prompt_list
from pelton.sampling_params import BeamSearchParams, RequestOutputKind
from tests.support.engines import core_of, num_finished, trace_steps
from tests.support.tiny_llama import CONTEXT_LENGTH, smollm2_tokenizer, tiny_llama, write_tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=4)
BEAMS = BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True)
SKY = [{"role": "user", "content": "Why is the sky blue?"}]
WATER = [*SKY, {"role": "assistant", "content": "Air."}, {"role": "user", "content": "And water?"}]


@pytest.fixture(scope="module")
def llm():
    return LLM(model=tiny_llama(), max_model_len=64, num_gpu_blocks_override=60)


@pytest.fixture(scope="module")
def paris(llm):
    return llm.generate("The capital of France is", GREEDY, use_tqdm=False)[0].outputs[0].token_ids


@pytest.fixture(autouse=True)
def empty_afterwards(llm):
    yield
    assert_empty(llm)


def assert_empty(llm):
    core = core_of(llm)
    assert llm.llm_engine.num_unfinished_requests == 0
    assert core.scheduler.requests == {}
    assert core.scheduler.running == []


def assert_usable(llm, paris):
    """Also drains a step that an interrupt left in flight."""
    assert llm.generate("The capital of France is", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == paris
    core = core_of(llm)
    assert not core.has_work
    assert core.kv.pool.num_free == core.kv.pool.num_usable
    assert core.num_integrity_failures == 0


def texts(outputs):
    return [output.outputs[0].text for output in outputs]


def test_a_prompt_in_every_form(llm, paris):
    tokenizer = llm.get_tokenizer()
    text = "The capital of France is"
    ids = tokenizer.encode(text)
    forms = [text, [text], {"prompt": text}, [{"prompt": text}], {"prompt_token_ids": ids}, ids, [ids], tuple(ids)]
    for form in forms:
        outputs = llm.generate(form, GREEDY, use_tqdm=False)
        assert len(outputs) == 1
        assert outputs[0].outputs[0].token_ids == paris, form
        assert outputs[0].prompt_token_ids == ids
        assert outputs[0].finished


def test_the_prompt_text_is_reported(llm):
    outputs = llm.generate(["Hi there", [1, 2]], GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["Hi there", None]


def test_many_prompts_keep_their_order(llm):
    """The first runs longest, so they finish in another order."""
    prompts = ["One two three", {"prompt": "The sun"}, [504, 3575], {"prompt_token_ids": [1, 2]}, "x"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 5, 7, 1, 3)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 5, 7, 1, 3]
    alone = [llm.generate([p], q, use_tqdm=False)[0] for p, q in zip(prompts, params, strict=True)]
    assert texts(outputs) == texts(alone)
    assert [output.prompt_token_ids for output in outputs] == [output.prompt_token_ids for output in alone]


def test_no_prompts(llm):
    assert llm.generate([], GREEDY, use_tqdm=False) == []
    assert llm.generate([], [], use_tqdm=False) == []


def test_default_parameters(llm):
    output = llm.generate([1], use_tqdm=False)[0]
    assert 1 <= len(output.outputs[0].token_ids) <= 16
    assert llm.get_default_sampling_params() == SamplingParams()


def test_the_models_own_default_parameters(tmp_path):
    folder = write_tiny_llama(tmp_path)
    defaults = {"temperature": 0.0, "max_new_tokens": 3, "do_sample": True, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    llm = LLM(model=str(folder), max_model_len=64)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=3)
    assert llm.get_default_sampling_params() is not llm.get_default_sampling_params()
    expected = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)
    for _ in range(2):
        (output,) = llm.generate("Hello", use_tqdm=False)
        assert output.outputs[0].token_ids == expected[0].outputs[0].token_ids
        llm.get_default_sampling_params().max_tokens = 7
    (output,) = llm.chat(SKY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) <= 3
    given = llm.generate("Hello", SamplingParams(temperature=0, ignore_eos=True), use_tqdm=False)
    assert len(given[0].outputs[0].token_ids) == 16, "parameters that are given are taken as they are"
    assert LLM(model=str(folder), generation_config="none").get_default_sampling_params() == SamplingParams()


def test_outputs_are_final_whatever_the_kind(llm, paris):
    for kind in RequestOutputKind:
        params = SamplingParams(temperature=0, max_tokens=4, output_kind=kind)
        output = llm.generate("The capital of France is", params, use_tqdm=False)[0]
        assert output.outputs[0].token_ids == paris
        assert params.output_kind is kind, "the user's own parameters stay as they are"


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        (["a", "b"], [GREEDY], "1 sampling_params for 2 prompts"),
        (["a", "b"], [GREEDY] * 3, "3 sampling_params for 2 prompts"),
        (["a", "b"], [], "0 sampling_params for 2 prompts"),
        ("a", [], "0 sampling_params for 1 prompts"),
        ([], [GREEDY], "1 sampling_params for 0 prompts"),
        ("a", 0, "sampling_params must be SamplingParams, got int"),
        ("a", {"temperature": 0}, "sampling_params must be SamplingParams, got dict"),
        (["a", "b"], [GREEDY, None], "sampling_params must be SamplingParams, got NoneType"),
        (None, GREEDY, "prompts must be a prompt or a sequence of prompts, got NoneType"),
        (5, GREEDY, "prompts must be a prompt or a sequence of prompts, got int"),
        ({"a"}, GREEDY, "prompts must be a prompt or a sequence of prompts, got set"),
        (b"abc", GREEDY, "prompts must be a prompt or a sequence of prompts, got bytes"),
        (np.array([1, 2]), GREEDY, "prompts must be a prompt or a sequence of prompts, got ndarray"),
        ([True, False], GREEDY, "prompt_token_ids must be integers, got True"),
        ([[]], GREEDY, "the prompt is empty"),
        ("", GREEDY, "the prompt is empty"),
        ([1, "a"], GREEDY, "prompt must be a string, a list of token ids, or a dict"),
    ],
)
def test_refused(llm, prompts, params, words):
    with pytest.raises(ValueError, match=words):
        llm.generate(prompts, params, use_tqdm=False)


@pytest.mark.parametrize(
    ("priority", "words"),
    [([1], "1 priority for 2 prompts"), ([], "0 priority for 2 prompts"), ([0, "2"], "priority must be an integer")],
)
def test_refused_priorities(llm, priority, words):
    with pytest.raises(ValueError, match=words):
        llm.generate(["a", "b"], GREEDY, use_tqdm=False, priority=priority)


def test_a_list_of_integers_is_one_prompt():
    assert as_prompt_list([1, 2]) == [[1, 2]]
    assert as_prompt_list([[1], [2]]) == [[1], [2]]
    assert as_prompt_list(("a", "b")) == ["a", "b"]


@pytest.mark.parametrize("position", [0, 2, 4])
@pytest.mark.parametrize("bad", ["", [49152], [1] * 64, "\ud800", {"prompt": "a", "cache_salt": ""}])
def test_one_bad_prompt_stops_all_before_any_runs(llm, paris, monkeypatch, bad, position):
    prompts = ["Hello"] * 4
    prompts.insert(position, bad)
    trace, finished = trace_steps(monkeypatch, llm), num_finished(llm)
    with pytest.raises(ValueError, match=r"."):
        llm.generate(prompts, GREEDY, use_tqdm=False)
    assert trace == []
    assert num_finished(llm) == finished
    assert_empty(llm)
    assert_usable(llm, paris)


def interrupt(monkeypatch, llm, when, *, after=False):
    """Let the `when`-th step from now on be interrupted. Returns the list of those that began."""
    worker = core_of(llm)._executor._worker
    execute, calls = worker.execute, []

    def interrupted(step):
        calls.append(step)
        if len(calls) != when:
            return execute(step)
        if after:
            execute(step)
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "execute", interrupted)
    return calls


LONG = SamplingParams(max_tokens=20, ignore_eos=True)
DOORS = {
    "generate": lambda llm: llm.generate(["Hello", "The sun", "One"], LONG, use_tqdm=False),
    "several choices": lambda llm: llm.generate(
        ["Hello", "The sun"], SamplingParams(n=3, max_tokens=20, ignore_eos=True), use_tqdm=False
    ),
    "chat": lambda llm: llm.chat([SKY, SKY], LONG, use_tqdm=False),
    "beam search": lambda llm: llm.beam_search(
        ["Hello", "The sun"], BeamSearchParams(beam_width=2, max_tokens=20, ignore_eos=True)
    ),
}


@pytest.mark.parametrize("when", [1, 2, 5])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_an_interrupt_leaves_nothing_running(llm, paris, monkeypatch, door, when, after):
    num_aborted = num_finished(llm)["abort"]
    calls = interrupt(monkeypatch, llm, when, after=after)
    with pytest.raises(KeyboardInterrupt):
        DOORS[door](llm)
    assert len(calls) == when
    assert num_finished(llm)["abort"] > num_aborted
    assert_empty(llm)
    assert_usable(llm, paris)


def test_a_failing_step_is_an_outcome_not_an_exception(llm, paris, monkeypatch):
    worker = core_of(llm)._executor._worker
    execute = worker.execute
    failing = iter([False, True])

    def broken(step):
        if next(failing, False):
            raise RuntimeError("the model broke")
        return execute(step)

    monkeypatch.setattr(worker, "execute", broken)
    outputs = llm.generate(["Hello", "The sun"], GREEDY, use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == ["error", "error"]
    assert [output.outputs[0].stop_reason for output in outputs] == ["RuntimeError: the model broke"] * 2
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 1], "what came before is kept"
    assert_usable(llm, paris)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1e300},
        {"temperature": 1e-300},
        {"temperature": 1e38, "top_p": 1e-300},
        {"top_k": 10**9},
        {"max_tokens": 10**9},
        {"stop": ["x" * 512] * 64},
        {"logprobs": 20},
        {"stop_token_ids": [49151]},
    ],
    ids=str,
)
def test_extreme_parameters_do_no_harm_to_others(llm, paris, params):
    """Warnings are errors here, so an overflow would fail the step and its neighbours."""
    extreme = SamplingParams(**{"max_tokens": 4} | params)
    outputs = llm.generate(["Hello", "The capital of France is"], [extreme, GREEDY], use_tqdm=False)
    assert outputs[1].outputs[0].token_ids == paris
    assert outputs[0].outputs[0].finish_reason in ("length", "stop")
    if params.get("max_tokens") == 10**9:
        assert len(outputs[0].prompt_token_ids) + len(outputs[0].outputs[0].token_ids) <= 64


@pytest.mark.parametrize("max_tokens", [None, 1, 62, 63, 64, 10**9])
@pytest.mark.parametrize("length", [1, 62, 63])
def test_outputs_end_at_the_context(llm, length, max_tokens):
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    completion = llm.generate([1] * length, params, use_tqdm=False)[0].outputs[0]
    assert len(completion.token_ids) == min(64 - length, max_tokens or 64)
    assert completion.finish_reason == "length"


def test_progress_goes_to_standard_error(llm, capsys):
    llm.generate(["Hello", "The sun"], GREEDY, use_tqdm=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Processed prompts: 100%" in captured.err
    assert "2/2" in captured.err
    assert "tokens/s" in captured.err


class Bar(tqdm):
    """Keeps what it shows; two seconds have passed, always."""

    shown: ClassVar[list[str]] = []

    @property
    def format_dict(self):
        return super().format_dict | {"elapsed": 2.0}

    def set_postfix_str(self, s="", refresh=True):
        self.shown.append(s)


def test_progress_counts_the_tokens_of_all_choices(llm):
    params = SamplingParams(n=3, max_tokens=5, ignore_eos=True)
    llm.generate([[1, 2, 3, 4]] * 2, params, use_tqdm=Bar)
    assert Bar.shown == ["input 2.0 tokens/s, output 7.5 tokens/s", "input 4.0 tokens/s, output 15.0 tokens/s"]


def test_a_bar_of_the_users_own(llm, capsys):
    bars = []

    def make_bar(**options):
        bars.append(options)
        return tqdm(**options)

    llm.generate(["Hello", "The sun"], GREEDY, use_tqdm=make_bar)
    llm.chat(SKY, GREEDY, use_tqdm=make_bar)
    llm.beam_search(["Hello"] * 3, BEAMS, use_tqdm=make_bar)
    assert [(bar["desc"], bar["total"]) for bar in bars] == [
        ("Processed prompts", 2),
        ("Processed prompts", 1),
        ("Beam search", 3),
    ]
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "door",
    [
        lambda llm: llm.generate(["Hello"], GREEDY, use_tqdm="no"),
        lambda llm: llm.chat(SKY, GREEDY, use_tqdm="no"),
        lambda llm: llm.beam_search(["Hello"], BEAMS, use_tqdm="no"),
    ],
)
def test_what_makes_no_bar(llm, door):
    finished = num_finished(llm)
    with pytest.raises(ValueError, match="use_tqdm must be True, False, or what makes a bar as tqdm does, got 'no'"):
        door(llm)
    assert num_finished(llm) == finished


def test_no_progress(llm, capsys):
    llm.generate(["Hello"], GREEDY, use_tqdm=False)
    llm.beam_search(["Hello"], BEAMS)
    assert capsys.readouterr() == ("", "")


def test_unseeded_runs_differ_and_seeded_ones_do_not(llm):
    def tokens(**params):
        outputs = llm.generate(["Hello"] * 3, SamplingParams(max_tokens=16, ignore_eos=True, **params), use_tqdm=False)
        return [tuple(output.outputs[0].token_ids) for output in outputs]

    assert len({*tokens(), *tokens()}) == 6
    assert len({*tokens(seed=5), *tokens(seed=5)}) == 1
    assert tokens(seed=5) != tokens(seed=6)


def test_logprobs(llm):
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=8, logprobs=3, ignore_eos=True)
    completion = llm.generate("The capital of France is", params, use_tqdm=False)[0].outputs[0]
    assert len(completion.logprobs) == len(completion.token_ids) == 8
    for token_id, entries in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(entries)) == token_id
        assert len(entries) == (3 if entries[token_id].rank <= 3 else 4)
        assert sorted(entry.rank for entry in entries.values())[:3] == [1, 2, 3]
        assert all(np.isfinite(entry.logprob) and entry.logprob <= 0 for entry in entries.values())
        assert all(entry.decoded_token == smollm2_tokenizer().token_text(i) for i, entry in entries.items())
        best = sorted(entries.values(), key=lambda entry: entry.rank)
        assert [entry.logprob for entry in best] == sorted((entry.logprob for entry in best), reverse=True)
        assert sum(np.exp(entry.logprob) for entry in entries.values()) <= 1.0001
    total = sum(entries[i].logprob for i, entries in zip(completion.token_ids, completion.logprobs, strict=True))
    assert completion.cumulative_logprob == pytest.approx(total)


def test_the_prefix_cache_can_be_reset(llm):
    prompt = list(range(100, 140))
    counts = [llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    assert counts == [0, 32]
    assert llm.reset_prefix_cache() is True
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0


def test_salts_keep_prefixes_apart(llm):
    def cached(**salt):
        prompt = {"prompt_token_ids": list(range(200, 240))} | salt
        return llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens

    assert [cached(), cached(cache_salt="a"), cached(cache_salt="b"), cached(cache_salt="a"), cached()] == [
        0,
        0,
        0,
        32,
        32,
    ]


def test_priority(monkeypatch):
    """One request at a time: lower values first, then in order."""
    llm = LLM(model=tiny_llama(), max_model_len=32, max_num_seqs=1, scheduling_policy="priority")
    trace = trace_steps(monkeypatch, llm)
    outputs = llm.generate(["a", "b", "c", "d"], GREEDY, use_tqdm=False, priority=[3, 1, 2, 1])
    order = list(dict.fromkeys(request_id for step in trace for request_id in step.request_ids))
    assert order == [outputs[i].request_id for i in (1, 3, 2, 0)]
    assert [output.prompt for output in outputs] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "no-such-model"}, "no-such-model"),
        ({"max_model_len": 257}, f"max_model_len is 257, but the model's context length is {CONTEXT_LENGTH}"),
        ({"max_model_len": 64, "num_gpu_blocks_override": 3}, "max_model_len is 64, but the KV cache holds"),
        ({"kv_cache_memory_bytes": 1000}, "raise kv_cache_memory_bytes"),
        ({"gpu_memory_utilization": 0.9}, "unknown engine argument gpu_memory_utilization"),
    ],
)
def test_refused_engine_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        LLM(**{"model": tiny_llama()} | arguments)


def test_threads_take_turns(llm):
    """Each gets what it gets alone."""
    prompts = [f"Number {n}" for n in range(4)]
    alone = [llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda prompt: llm.generate([prompt] * 5, GREEDY, use_tqdm=False), prompts))
    for tokens, same in zip(alone, outputs, strict=True):
        assert [output.outputs[0].token_ids for output in same] == [tokens] * 5


def test_the_prompt_that_is_wrong_is_named(llm):
    with pytest.raises(ValueError, match="prompt 1: the prompt is empty"):
        llm.generate(["a", "", "b"], GREEDY, use_tqdm=False)
    with pytest.raises(ValueError, match=r"^the prompt is empty"):
        llm.generate("", GREEDY, use_tqdm=False)


def test_chat_completes_what_the_template_makes_of_conversations(llm):
    tokenizer = llm.get_tokenizer()
    prompts = [render_chat(tokenizer, conversation) for conversation in (SKY, WATER)]
    expected = llm.generate(prompts, GREEDY, use_tqdm=False)
    for outputs in (
        llm.chat([SKY, WATER], GREEDY, False),
        llm.chat(SKY, GREEDY, False) + llm.chat(WATER, GREEDY, False),
    ):
        assert [output.prompt for output in outputs] == [prompt["prompt"] for prompt in prompts]
        assert [output.prompt_token_ids for output in outputs] == [prompt["prompt_token_ids"] for prompt in prompts]
        assert texts(outputs) == texts(expected)


def test_chat_takes_parameters_per_conversation(llm):
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 5)]
    outputs = llm.chat([SKY, WATER], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    with pytest.raises(ValueError, match="2 sampling_params for 1 conversations; give one, or one per conversation"):
        llm.chat(SKY, params, use_tqdm=False)


def test_chat_takes_the_arguments_of_templates(llm):
    options = {
        "chat_template": "{{ mood }}{{ tools[0].name }}{{ messages[-1].content }}",
        "add_generation_prompt": False,
    }
    (output,) = llm.chat(
        SKY, GREEDY, False, tools=[{"name": "clock"}], chat_template_kwargs={"mood": "calm"}, **options
    )
    assert output.prompt == "calmclockWhy is the sky blue?"
    unfinished = [*SKY, {"role": "assistant", "content": "Because of"}]
    (output,) = llm.chat(unfinished, GREEDY, False, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt.endswith("assistant\nBecause of")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "^messages is empty"),
        ("Hello", "^messages must be a list of dicts"),
        ([SKY, []], "^conversation 1: the conversation is empty"),
        ([SKY, WATER, [{"role": "user", "content": [{"type": "image"}]}]], "^conversation 2: message 0: .* 'image'"),
        ([*SKY, "Hello"], "^message 1: a message must be a dict"),
        ([SKY, *WATER], "^conversation 1: a conversation must be a list of messages, got dict"),
        ([SKY, [{"role": "user", "content": "x " * 99}]], "^conversation 1: This model's maximum context length is 64"),
        ([{"role": "user", "content": "x " * 99}], "^This model's maximum context length is 64"),
    ],
)
def test_refused_conversations(llm, monkeypatch, messages, words):
    trace = trace_steps(monkeypatch, llm)
    with pytest.raises(ValueError, match=words):
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert trace == []


def test_threads_take_turns_at_all_doors(llm):
    """Each gets what it gets alone."""

    def found(outputs):
        return [sequence.tokens for output in outputs for sequence in output.sequences]

    beams, greedy = llm.beam_search(["Hello"] * 2, BEAMS), llm.chat([SKY] * 2, GREEDY, use_tqdm=False)
    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(llm.beam_search, ["Hello"] * 2, BEAMS) for _ in range(3)]
        chats = [pool.submit(llm.chat, [SKY] * 2, GREEDY, use_tqdm=False) for _ in range(3)]
    assert all(found(search.result()) == found(beams) for search in searches)
    assert all(texts(chat.result()) == texts(greedy) for chat in chats)


@pytest.fixture
def quick_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_the_prefix_cache_is_reset_between_the_calls_of_other_threads(llm, paris, quick_switches):
    """Figures can be read meanwhile, and fit together."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(llm.generate, ["The capital of France is"] * 8, params, use_tqdm=False) for _ in range(6)]
        while not all(call.done() for call in calls):
            assert llm.reset_prefix_cache()
            for metric in llm.get_metrics():
                if isinstance(metric, Histogram):
                    assert metric.buckets["+Inf"] == metric.count
    for call in calls:
        assert [output.outputs[0].token_ids[:4] for output in call.result()] == [paris] * 8
    assert_usable(llm, paris)


@pytest.mark.parametrize("what", ["reset_prefix_cache", "shutdown"])
def test_others_wait_for_a_call_that_runs(what):
    llm = LLM(model=tiny_llama(), max_model_len=64, num_gpu_blocks_override=60)
    events = []

    class Watching(tqdm):
        def update(self, n=1):
            if not events:
                events.append("began")
                thread.start()
                thread.join(0.05)
                llm.get_metrics()
            events.append("request")

    thread = Thread(target=lambda: (getattr(llm, what)(), events.append(what)))
    outputs = llm.generate(["a", "b", "c"], GREEDY, use_tqdm=Watching)
    thread.join()
    assert events == ["began", *["request"] * 3, what]
    assert all(output.outputs[0].finish_reason in ("stop", "length") for output in outputs)


@pytest.mark.parametrize(
    "door",
    [
        lambda llm: llm.generate("a", GREEDY, use_tqdm=False),
        lambda llm: llm.generate([], use_tqdm=False),
        lambda llm: llm.chat(SKY, GREEDY, use_tqdm=False),
        lambda llm: llm.beam_search("a", BEAMS),
        lambda llm: llm.beam_search([], BEAMS),
        lambda llm: llm.reset_prefix_cache(),
        lambda llm: llm.llm_engine.add_request("a", GREEDY),
        lambda llm: llm.llm_engine.step(),
    ],
)
def test_nothing_runs_after_shutdown(stopped, door):
    with pytest.raises(ValueError, match=r"^the engine has been shut down; make a new LLM$"):
        door(stopped)


@pytest.fixture(scope="module")
def stopped():
    llm = LLM(model=tiny_llama(), max_model_len=64)
    llm.generate("a", GREEDY, use_tqdm=False)
    llm.shutdown()
    return llm


def test_what_is_left_after_shutdown(stopped):
    stopped.shutdown()
    assert num_finished(stopped)["length"] + num_finished(stopped)["stop"] == 1
    assert stopped.get_default_sampling_params() == SamplingParams()
    assert stopped.get_tokenizer().encode("a")


def test_metrics(llm):
    before = {(metric.name, *metric.labels.values()): metric for metric in llm.get_metrics()}
    llm.generate([[1, 2, 3]] * 2, SamplingParams(n=2, max_tokens=5, ignore_eos=True), use_tqdm=False)
    after = {(metric.name, *metric.labels.values()): metric for metric in llm.get_metrics()}
    assert after.keys() == before.keys()
    (name,) = [name for name in after if name[0] == "vllm:generation_tokens"]
    assert after[name].value - before[name].value == 20


def test_a_call_within_a_call_is_told():
    """A bar's callback that generates: no deadlock, and no outputs mixed up."""
    llm = LLM(model=tiny_llama(), max_model_len=64, num_gpu_blocks_override=20)
    inner = []

    class Bar(nullcontext):
        format_dict: ClassVar = {"elapsed": 1.0}

        def __enter__(self):
            return self

        def set_postfix_str(self, *args, **kwargs):
            pass

        def update(self):
            inner.extend(llm.generate("inner", GREEDY, use_tqdm=False))
            assert llm.reset_prefix_cache()

    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 9)]
    with pytest.raises(RuntimeError, match="called again"):
        llm.generate(["a", "b"], params, use_tqdm=lambda **kwargs: Bar())
    assert inner[0].outputs[0].finish_reason is not None
    assert llm.generate("after", GREEDY, use_tqdm=False)[0].finished
