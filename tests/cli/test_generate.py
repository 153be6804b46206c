"""`pelton generate`, in this process."""

import pytest

from pelton import LLM, SamplingParams
from pelton.cli.generate import make_parser
from pelton.cli.main import main
from pelton.core.outputs import CompletionOutput, RequestOutput
from tests.support.tiny_llama import smollm2_tokenizer, tiny_llama


@pytest.fixture(scope="module")
def llm():
    return LLM(model=tiny_llama())


def expected(llm, prompts, **params):
    params = SamplingParams(**{"temperature": 0, "max_tokens": 6} | params)
    headed = len(prompts) > 1
    return "".join(
        (f"=== {output.prompt}\n" if headed else "") + output.outputs[0].text + "\n"
        for output in llm.generate(prompts, params, use_tqdm=False)
    )


def generate(*arguments):
    return main(["generate", "--model", tiny_llama(), "--temperature", "0", "--max-tokens", "6", *arguments])


def test_several_prompts_in_their_order(llm, capsys):
    prompts = ["Hello", "The sun", "One two", "Hello"]
    assert generate(*prompts) == 0
    captured = capsys.readouterr()
    assert captured.out == expected(llm, prompts)
    assert len(set(expected(llm, prompts).split("\n"))) > 2, "the outputs differ"
    num_prompt_tokens = sum(len(smollm2_tokenizer().encode(prompt)) for prompt in prompts)
    assert f"{num_prompt_tokens} prompt tokens, 24 output tokens in " in captured.err
    assert "tokens/s" in captured.err


def test_chat(llm, capsys):
    assert generate("--chat", "Hello") == 0
    prompt = smollm2_tokenizer().apply_chat_template([{"role": "user", "content": "Hello"}])
    assert "<|im_start|>assistant" in prompt
    assert capsys.readouterr().out == expected(llm, [prompt]) != expected(llm, ["Hello"])


def test_sampling_flags_arrive(llm, capsys):
    ids = ["7", "8"]
    flags = ["--temperature", "0.8", "--top-k", "40", "--top-p", "0.9", "--seed", "7", "--ignore-eos"]
    assert (
        generate(*flags, "--stop", "e", "--stop", "a", "Hello", "--stop-token-ids", ids[0], "--stop-token-ids", ids[1])
        == 0
    )
    params = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 7, "ignore_eos": True, "stop": ["e", "a"]}
    assert capsys.readouterr().out == expected(llm, ["Hello"], stop_token_ids=[7, 8], **params)


def test_defaults_are_those_of_the_engine():
    options = vars(make_parser().parse_args(["Hi"]))
    defaults = SamplingParams()
    for name in ("temperature", "top_k", "top_p", "seed", "ignore_eos", "stop", "stop_token_ids"):
        assert options[name] == getattr(defaults, name), name
    assert options["max_tokens"] == 256


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([""], "the prompt is empty"),
        (["fine", ""], "the prompt is empty"),
        (["word " * 300], "maximum context length is 256 tokens, but the prompt has"),
        (["--max-tokens", "0", "Hi"], "max_tokens must be at least 1, got 0"),
        (["--temperature", "nan", "Hi"], "temperature must be a finite number, got nan"),
        (["--top-p", "2", "Hi"], "top_p must be in (0, 1]"),
        (["--seed", "-1", "Hi"], "seed must be at least 0, got -1"),
        (["--stop", "", "Hi"], "stop must hold non-empty strings"),
        (["Hi", "--stop-token-ids", "49152"], "token id 49152 in stop_token_ids is outside the vocabulary"),
        (["--max-model-len", "1000", "Hi"], "max_model_len is 1000, but the model's context length is 256"),
        (["--block-size", "0", "Hi"], "block_size must be at least 1, got 0"),
        (
            ["--kv-cache-memory-bytes", "5000", "--num-gpu-blocks-override", "5", "Hi"],
            "set only one of num_gpu_blocks_override and kv_cache_memory_bytes",
        ),
        (["--kv-cache-memory-bytes", "1", "Hi"], "raise kv_cache_memory_bytes"),
    ],
)
def test_mistakes(capsys, arguments, words):
    assert generate(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.splitlines()[-1]
    assert line.startswith("pelton: ")
    assert words in line


class PlayedEngine:
    """Emits what it is told to, step by step: {request id: (text, finish reason)}."""

    tokenizer = None

    def __init__(self, steps, after_step):
        self._steps = iter(steps)
        self._after_step = after_step
        self._num_requests = 0
        self._first = True

    def add_request(self, prompt, params):
        self._num_requests += 1
        return str(self._num_requests - 1)

    def step(self):
        if not self._first:
            self._after_step()
        self._first = False
        return [
            RequestOutput(request_id, "p", [1], [completion(text, reason)], reason is not None, 0)
            for request_id, (text, reason) in next(self._steps).items()
        ]


def completion(text, reason):
    return CompletionOutput(0, text, [1] * bool(text), None, None, reason, "it broke" if reason == "error" else None)


def play(monkeypatch, capsys, num_prompts, *steps):
    """Exit status, what was printed during each step, and standard error."""
    shown = []
    engine = PlayedEngine(steps, lambda: shown.append(capsys.readouterr().out))
    monkeypatch.setattr("pelton.cli.generate.LLMEngine.from_engine_args", lambda args, progress: engine)
    status = main(["generate", *["p"] * num_prompts])
    captured = capsys.readouterr()
    return status, [*shown, captured.out], captured.err


def test_the_first_unfinished_prompt_streams(monkeypatch, capsys):
    """The others wait, and come in one piece or live when their turn comes."""
    status, shown, errors = play(
        monkeypatch,
        capsys,
        3,
        {"0": ("a", None), "1": ("x", None), "2": ("m", None)},
        {"0": ("b", None), "1": ("y", "length"), "2": ("n", None)},
        {"2": ("o", None)},
        {"0": ("c", "stop"), "2": ("p", None)},
        {"2": ("q", "stop")},
    )
    assert status == 0
    assert shown == ["=== p\na", "b", "", "c\n=== p\nxy\n=== p\nmnop", "q\n"]
    assert "1 cut off by --max-tokens" in errors


def test_a_request_that_fails(monkeypatch, capsys):
    """What it had is shown, the others go on, and the status says so."""
    status, shown, errors = play(
        monkeypatch, capsys, 2, {"0": ("a", None), "1": ("x", None)}, {"0": ("", "error"), "1": ("y", "stop")}
    )
    assert status == 1
    assert "".join(shown) == "=== p\na\n=== p\nxy\n"
    assert errors.splitlines()[-1] == "pelton: a request failed: it broke"
