"""`pelton generate`, in this process."""

import os
import sys
from contextlib import ExitStack
from typing import ClassVar

import pytest

from pelton import LLM, SamplingParams
from pelton.cli.main import main
from pelton.core.outputs import CompletionOutput, RequestOutput
from pelton.engine.llm_engine import LLMEngine
from tests.cli.helpers import give_stdin, without_chat_template
from tests.support.tiny_llama import smollm2_tokenizer, tiny_llama, write_tiny_llama


@pytest.fixture(scope="module")
def llm():
    return LLM(model=tiny_llama())


PARAMS = SamplingParams(temperature=0, max_tokens=6)


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
    assert f"{num_prompt_tokens} prompt tokens (0 cached), 24 output tokens in " in captured.err
    assert "tokens/s" in captured.err


def test_chat(llm, capsys):
    assert generate("--chat", "Hello") == 0
    prompt = smollm2_tokenizer().apply_chat_template([{"role": "user", "content": "Hello"}])
    assert "<|im_start|>assistant" in prompt
    assert capsys.readouterr().out == expected(llm, [prompt]) != expected(llm, ["Hello"])


def test_chat_with_a_system_message_and_another_template(llm, capsys, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}>")
    assert generate("--chat", "--system", "Be kind", "--chat-template", str(template), "Hello") == 0
    assert capsys.readouterr().out == expected(llm, ["system: Be kind\nuser: Hello\n>"])


def test_sampling_flags_arrive(llm, capsys):
    ids = ["7", "8"]
    flags = ["--temperature", "0.8", "--top-k", "40", "--top-p", "0.9", "--seed", "7", "--ignore-eos"]
    assert (
        generate(*flags, "--stop", "e", "--stop", "a", "Hello", "--stop-token-ids", ids[0], "--stop-token-ids", ids[1])
        == 0
    )
    params = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 7, "ignore_eos": True, "stop": ["e", "a"]}
    assert capsys.readouterr().out == expected(llm, ["Hello"], stop_token_ids=[7, 8], **params)


def test_several_choices(llm, capsys):
    assert generate("--temperature", "1", "--seed", "7", "--n", "2", "Hello", "The sun") == 0
    params = SamplingParams(temperature=1, seed=7, n=2, max_tokens=6)
    outputs = llm.generate(["Hello", "The sun"], params, use_tqdm=False)
    assert outputs[0].outputs[0].text != outputs[0].outputs[1].text
    assert capsys.readouterr().out == "".join(
        f"=== {output.prompt}\n--- choice 1\n{output.outputs[0].text}\n--- choice 2\n{output.outputs[1].text}\n"
        for output in outputs
    )


def test_prompts_from_files_and_standard_input(llm, monkeypatch, capsys, tmp_path):
    """One line end at the end is the file's, not the prompt's; others are."""
    (tmp_path / "a").write_bytes(b"One two\r\n\n")
    (tmp_path / "b").write_bytes(b"The sun")
    give_stdin(monkeypatch, b"Hello\n")
    files = [str(tmp_path / name) for name in "ab"]
    assert generate("--file", files[0], "-", "--file", files[1]) == 0
    texts = [o.outputs[0].text for o in llm.generate(["Hello", "One two\r\n", "The sun"], PARAMS, use_tqdm=False)]
    names = ["standard input", *files]
    assert capsys.readouterr().out == "".join(f"=== {n}\n{t}\n" for n, t in zip(names, texts, strict=True))


@pytest.mark.parametrize("arguments", [[], ["-"]])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_standard_input_alone(llm, monkeypatch, capsys, arguments, mark):
    give_stdin(monkeypatch, f"{mark}Grüße\n".encode())
    assert generate(*arguments) == 0
    assert capsys.readouterr().out == expected(llm, ["Grüße"])


def test_a_file_with_a_byte_order_mark(llm, capsys, tmp_path):
    path = tmp_path / "file"
    path.write_text("\ufeffHello")
    assert generate("--file", str(path)) == 0
    assert capsys.readouterr().out == expected(llm, ["Hello"])


def test_files_that_are_pipes(llm, capsys):
    """As shells make them of `<(command)`."""
    texts = ["Hello\n", "{{ messages[0].content }}, {{ messages[0].role }}"]
    with ExitStack() as stack:
        paths = []
        for text in texts:
            reader, writer = os.pipe()
            stack.callback(os.close, reader)
            with os.fdopen(writer, "w") as file:
                file.write(text)
            paths.append(f"/dev/fd/{reader}")
        assert generate("--chat", "--file", paths[0], "--chat-template", paths[1]) == 0
    assert capsys.readouterr().out == expected(llm, ["Hello, user"])


@pytest.mark.parametrize("command", [["generate", "--chat", "Hi"], ["generate", "--jsonl", os.devnull], ["chat"]])
def test_a_template_that_is_wrong(monkeypatch, capsys, tmp_path, command):
    """It is not worth the loading of a model."""
    monkeypatch.setattr(LLMEngine, "from_engine_args", None)
    path = tmp_path / "bad.jinja"
    path.write_text("{{ messages }}\n\n{% if %}\n")
    assert main([*command, "--chat-template", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pelton: the chat template {path} is not valid: line 3: ")
    assert main([*command, "--chat-template", "{{ messages | frobnicate }}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pelton: the chat template is not valid: line 1: ")


def test_a_model_without_a_chat_template(capsys, tmp_path):
    folder = without_chat_template(tmp_path)
    assert main(["generate", "--model", folder, "--chat", "Hi"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "pelton: the model has no chat template; give one with --chat-template FILE"


def test_the_models_own_defaults(llm, capsys, tmp_path):
    """They hold for what no flag says; without any, 256 tokens are the limit."""
    folder = write_tiny_llama(tmp_path)
    (folder / "generation_config.json").write_text('{"temperature": 0, "max_new_tokens": 16}')
    assert main(["generate", "--model", str(folder), "--ignore-eos", "Hello"]) == 0
    assert capsys.readouterr().out == expected(llm, ["Hello"], max_tokens=16, ignore_eos=True)
    (folder / "generation_config.json").write_text('{"temperature": 0}')
    assert main(["generate", "--model", str(folder), "--ignore-eos", "--max-model-len", "256", "Hello"]) == 0
    assert " 255 output tokens in " in capsys.readouterr().err, "the rest of the context is a little less than 256"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([""], "the prompt is empty"),
        (["fine", ""], "the prompt is empty"),
        (["word " * 300], "maximum context length is 256 tokens, but the prompt has"),
        (["--max-tokens", "-1", "Hi"], "max_tokens must be at least 0, got -1"),
        (["--min-tokens", "7", "Hi"], "min_tokens must be at most max_tokens, which is 6, got 7"),
        (["-", "a", "-"], "standard input can be read only once, but - is given 2 times"),
        (["--file", "no/such/file"], "no/such/file cannot be read: No such file or directory"),
        (["--file", "."], ". cannot be read: Is a directory"),
        (["--file", sys.executable], "is not UTF-8"),
        (["--logprobs", "2", "Hi"], "logprobs is 2, but plain text has no place for it; use --jsonl"),
        (["--prompt-logprobs", "0", "Hi"], "prompt_logprobs is 0, but plain text has no place for it; use --jsonl"),
        (["--no-detokenize", "Hi"], "detokenize is False, but then there is no text to print; use --jsonl"),
        (["--system", "", "Hi"], "--system is given, but it is only for --chat"),
        (["--chat-template", __file__, "Hi"], "--chat-template is given, but it is only for --chat"),
        (["--file", "/dev/zero"], "/dev/zero cannot be read: it is larger than 16 MB"),
        (["--chat", "--chat-template", os.devnull, "Hi"], f"{os.devnull} is not a chat template: it has no {{"),
        (["--chat", "--chat-template", ".", "Hi"], ". cannot be read: Is a directory"),
        (["--chat", "--chat-template", "", "Hi"], "chat_template must be the text of a template or the path of a file"),
        (["--output", "out", "Hi"], "--output is given, but it is only for --jsonl"),
        (["--jsonl", "-", "Hi"], "PROMPT is given, but --jsonl has its own prompts and messages"),
        (["--jsonl", "-", "--file", "a"], "--file is given, but --jsonl has its own prompts and messages"),
        (["--jsonl", "-", "--chat"], "--chat is given, but --jsonl has its own prompts and messages"),
        (["--temperature", "nan", "Hi"], "temperature must be a finite number, got nan"),
        (["--top-p", "2", "Hi"], "top_p must be in (0, 1]"),
        (["--seed", "-2", "Hi"], "seed must be at least -1, got -2"),
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


@pytest.mark.parametrize(
    ("content", "is_terminal", "words"),
    [
        (b"", True, "there is no prompt; give a PROMPT, --file FILE, --jsonl FILE, or a text on standard input"),
        (b"", False, "standard input is empty"),
        (b"\n", False, "standard input is empty"),
        (b"caf\xe9", False, "standard input is not UTF-8"),
    ],
)
def test_no_prompt(monkeypatch, capsys, content, is_terminal, words):
    """It is not worth the loading of a model."""
    monkeypatch.setattr(LLMEngine, "from_engine_args", None)
    give_stdin(monkeypatch, content, is_terminal=is_terminal)
    assert main(["generate"]) == 2
    assert words in capsys.readouterr().err


def test_no_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)
    for arguments in ([], ["-"], ["--jsonl", "-"]):
        assert main(["generate", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err


class PlayedEngine:
    """Emits what it is told to, step by step: {request id: (text, finish reason)}, or a list with the choices' indices
    before."""

    tokenizer = None
    generation_defaults: ClassVar = {}

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
            RequestOutput(request_id, "p", [1], [completion(*choice) for choice in as_choices(news)], False, 0)
            for request_id, news in next(self._steps).items()
        ]


def as_choices(news):
    return news if isinstance(news, list) else [(0, *news)]


def completion(index, text, reason):
    stop_reason = "it broke" if reason == "error" else None
    return CompletionOutput(index, text, [1] * bool(text), None, None, reason, stop_reason)


def play(monkeypatch, capsys, num_prompts, *steps, flags=()):
    """Exit status, what was printed during each step, and standard error."""
    shown = []
    engine = PlayedEngine(steps, lambda: shown.append(capsys.readouterr().out))
    monkeypatch.setattr("pelton.engine.llm_engine.LLMEngine.from_engine_args", lambda args, progress: engine)
    status = main(["generate", *flags, *["p"] * num_prompts])
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
    assert "1 cut off by max_tokens" in errors


def test_the_first_unfinished_choice_streams(monkeypatch, capsys):
    status, shown, errors = play(
        monkeypatch,
        capsys,
        1,
        {"0": [(1, "x", None)]},
        {"0": [(0, "a", None), (1, "y", None)]},
        {"0": [(1, "z", "length")]},
        {"0": [(0, "b", "length")]},
        flags=["--n", "2"],
    )
    assert status == 0
    assert shown == ["--- choice 1\n", "a", "", "b\n--- choice 2\nxyz\n"]
    assert "2 cut off by max_tokens" in errors


def test_a_request_that_fails(monkeypatch, capsys):
    """What it had is shown, the others go on, and the status says so."""
    status, shown, errors = play(
        monkeypatch, capsys, 2, {"0": ("a", None), "1": ("x", None)}, {"0": ("", "error"), "1": ("y", "stop")}
    )
    assert status == 1
    assert "".join(shown) == "=== p\na\n=== p\nxy\n"
    assert errors.splitlines()[-1] == "pelton: a request failed: it broke"
