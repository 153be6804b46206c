"""The executors that tests of serving rely on do what they say."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pelton import LLM, SamplingParams
from pelton.config import EngineArgs
from pelton.core.messages import SchedulerOutput
from pelton.executor import make_executor
from pelton.loader import open_checkpoint
from tests.support.lockstep_barrier import LockstepBarrier, Round
from tests.support.serving_executors import CRASH_CODE, LOGPROB, Vocabulary
from tests.support.tiny_llama import tiny_llama

PACKAGE = "tests.support.serving_executors"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    config = open_checkpoint(tiny_llama()).config
    return Vocabulary(config.vocab_size, config.eos_token_ids)


def make_llm(name: str, **arguments) -> LLM:
    return LLM(model=tiny_llama(), distributed_executor_backend=f"{PACKAGE}:{name}", **arguments)


def generate(llm: LLM, prompts, **params):
    params = SamplingParams(max_tokens=params.pop("max_tokens", 8), **params)
    return llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], params, use_tqdm=False)


def test_tokens_do_not_depend_on_chunks_or_cache_hits(vocabulary):
    prompts = [range(1000 + index, 1060 + index) for index in (0, 1, 7)]
    llm = make_llm("InstantExecutor", max_num_batched_tokens=7)
    for num_cached in (0, 48):
        for prompt, output in zip(prompts, generate(llm, prompts, max_tokens=30), strict=True):
            assert output.outputs[0].token_ids == vocabulary.expected_tokens(prompt, 30)
            assert output.num_cached_tokens == num_cached


def test_tokens_do_not_depend_on_preemption(vocabulary):
    prompts = [range(1000 + index, 1010 + index) for index in (0, 1, 7)]
    llm = make_llm("InstantExecutor", num_gpu_blocks_override=8, max_model_len=96)
    for prompt, output in zip(prompts, generate(llm, prompts, max_tokens=70), strict=True):
        assert output.outputs[0].token_ids == vocabulary.expected_tokens(prompt, 70)
    (preemptions,) = [metric for metric in llm.get_metrics() if metric.name.endswith("num_preemptions")]
    assert preemptions.value > 0


def test_log_probabilities(vocabulary):
    prompts = [range(1000, 1020), range(1005, 1035)]
    llm = make_llm("InstantExecutor", max_num_batched_tokens=7)
    plain, asking = (generate(llm, prompts, **params) for params in ({}, {"logprobs": 2, "prompt_logprobs": 1}))
    for prompt, without, output in zip(prompts, plain, asking, strict=True):
        assert without.outputs[0].logprobs is None
        tokens = output.outputs[0].token_ids
        assert [list(entry) for entry in output.outputs[0].logprobs] == [[token, token + 1] for token in tokens]
        assert output.outputs[0].logprobs[0][tokens[0]].logprob == LOGPROB
        assert output.prompt_logprobs[0] is None
        assert [list(entry) for entry in output.prompt_logprobs[1:]] == [[token] for token in prompt[1:]]


def test_steps_take_their_time(monkeypatch):
    slept = []
    monkeypatch.setattr(f"{PACKAGE}.time.sleep", slept.append)
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.25")
    generate(make_llm("StepClockExecutor"), [[1000, 1001]], max_tokens=3)
    assert slept == [0.25] * 3


def test_steps_fail_while_the_file_is_there(monkeypatch, tmp_path, vocabulary):
    monkeypatch.setenv("FAKE_EXECUTOR_FOLDER", str(tmp_path))
    llm = make_llm("FailingExecutor")
    (tmp_path / "fail").touch()
    choice = generate(llm, [[1000, 1001]])[0].outputs[0]
    assert (choice.finish_reason, choice.stop_reason) == ("error", "RuntimeError: the model broke")
    (tmp_path / "fail").unlink()
    assert generate(llm, [[1000, 1001]])[0].outputs[0].token_ids == vocabulary.expected_tokens([1000, 1001], 8)


def test_steps_hang_while_the_file_is_there(monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_EXECUTOR_FOLDER", str(tmp_path))
    polled = threading.Event()
    monkeypatch.setattr(f"{PACKAGE}.time.sleep", lambda seconds: polled.set() or threading.Event().wait(seconds))
    llm = make_llm("HangingExecutor")
    (tmp_path / "hang").touch()
    outputs = []
    thread = threading.Thread(target=lambda: outputs.append(generate(llm, [[1000, 1001]])))
    thread.start()
    assert polled.wait(60)
    assert outputs == []
    (tmp_path / "hang").unlink()
    thread.join(60)
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("environment", "file", "code"),
    [({"FAKE_CRASH_STEP": "3"}, None, CRASH_CODE), ({}, "crash", CRASH_CODE), ({}, "kill", -signal.SIGKILL)],
)
def test_crashes(tmp_path, environment, file, code):
    if file is not None:
        (tmp_path / file).touch()
    script = (
        "from pelton import LLM, SamplingParams\n"
        f"llm = LLM(model={tiny_llama()!r}, distributed_executor_backend='{PACKAGE}:CrashingExecutor')\n"
        "llm.generate('Hello', SamplingParams(max_tokens=5), use_tqdm=False)\n"
        "print('survived')"
    )
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"FAKE_EXECUTOR_FOLDER": str(tmp_path), "PYTHONPATH": path} | environment
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ranks_wait_for_each_other(monkeypatch):
    with LockstepBarrier(2) as barrier:
        monkeypatch.setenv("FAKE_BARRIER_PORT", str(barrier.port))
        args = EngineArgs.create(distributed_executor_backend=f"{PACKAGE}:BlockingExecutor")
        first, second, dying = (make_executor(args, open_checkpoint(tiny_llama())) for _ in range(3))
        assert first.needs_lockstep
        empty = SchedulerOutput(1, [], [], [], [], [], {}, [])
        dying._worker._barrier.sendall(b"s")
        dying.shutdown()
        thread = threading.Thread(target=first.launch, args=(empty,))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        second.execute_dummy()
        thread.join(60)
        assert first.collect(1).token_ids == []
        assert barrier.rounds == [Round(1, 1)]
        first.shutdown()
        second.shutdown()
