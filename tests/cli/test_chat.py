"""`pelton chat` without a terminal: turns, commands, the history, and what goes wrong."""

import subprocess
from pathlib import Path

import pytest

from pelton import LLM, SamplingParams
from pelton.cli.main import main
from pelton.engine.llm_engine import LLMEngine
from pelton.sampling.logits_processor import LogitsProcessor
from tests.cli.helpers import PELTON, give_stdin, on_tiny_llama, without_chat_template
from tests.support.tiny_llama import smollm2_tokenizer, tiny_llama

FLAGS = ["--max-tokens", "5", "--ignore-eos"]


@pytest.fixture(scope="module")
def llm():
    return LLM(model=tiny_llama())


@pytest.fixture
def prompts(monkeypatch):
    """The text of every conversation that an engine gets from now on."""
    seen = []
    add_request = LLMEngine.add_request

    def recorded(engine, prompt, params, **kwargs):
        if isinstance(prompt, dict):
            seen.append(prompt["prompt"])
        return add_request(engine, prompt, params, **kwargs)

    monkeypatch.setattr(LLMEngine, "add_request", recorded)
    return seen


def chat(monkeypatch, content, *flags):
    give_stdin(monkeypatch, content if isinstance(content, bytes) else content.encode())
    return main(on_tiny_llama("chat", *FLAGS, *flags))


def rendered(*turns, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    return smollm2_tokenizer().apply_chat_template(messages)


def answer(llm, prompt):
    token_ids = smollm2_tokenizer().encode(prompt, add_special_tokens=False)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    return llm.generate([token_ids], params, use_tqdm=False)[0].outputs[0].text


def test_each_line_is_a_turn(llm, monkeypatch, capsys, prompts):
    """The history holds exactly what was shown. Blank lines are no turns, and the last one needs no line end."""
    assert chat(monkeypatch, "Hello\n\n  \r\nAnd then? é\r\nGo on") == 0
    first = answer(llm, rendered("Hello"))
    second = answer(llm, rendered("Hello", first, "And then? é"))
    third_prompt = rendered("Hello", first, "And then? é", second, "Go on")
    assert prompts == [rendered("Hello"), rendered("Hello", first, "And then? é"), third_prompt]
    captured = capsys.readouterr()
    assert captured.out == f"{first}\n{second}\n{answer(llm, third_prompt)}\n"
    assert "output tokens" not in captured.err
    assert "> " not in captured.err


def test_commands(monkeypatch, capsys, prompts):
    lines = ["One", "/reset", "Two", "/system Be kind", "Three", "/reset", "Four", "/system", "Five", "/exit", "Six"]
    assert chat(monkeypatch, "\n".join(lines), "--system", "Be brief") == 0
    assert prompts == [
        rendered("One", system="Be brief"),
        rendered("Two", system="Be brief"),
        rendered("Three", system="Be kind"),
        rendered("Four", system="Be kind"),
        rendered("Five"),
    ]
    assert capsys.readouterr().out.count("\n") >= 5


def test_help(monkeypatch, capsys, prompts):
    assert chat(monkeypatch, "/help\n") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert prompts == []
    for name in ("/reset", "/system", "/help", "/exit"):
        assert name in captured.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/quit", "pelton: unknown command /quit; there are /reset, /system, /help and /exit"),
        ("/usr/bin is what?", "pelton: unknown command /usr/bin;"),
        ("/exit now", "pelton: /exit stands alone, got 'now' after it"),
    ],
)
def test_what_is_no_command_is_not_sent(monkeypatch, capsys, prompts, line, words):
    assert chat(monkeypatch, f"{line}\n /a question\n") == 1
    assert words in capsys.readouterr().err
    assert prompts == [rendered(" /a question")]


def test_a_message_that_is_refused_is_taken_back(llm, monkeypatch, capsys, prompts):
    first = answer(llm, rendered("Hello"))
    long = "word " * 300
    assert chat(monkeypatch, f"Hello\n{long}\n".encode() + b"caf\xe9\nGo on\n") == 1
    assert prompts[-1] == rendered("Hello", first, "Go on")
    captured = capsys.readouterr()
    assert captured.out.startswith(first)
    too_long, no_text = captured.err.splitlines()[-3:-1]
    assert too_long.startswith("pelton: This model's maximum context length is 256 tokens")
    assert too_long.endswith("(the message is taken back; /reset forgets the conversation)")
    assert no_text.startswith("pelton: the line is not UTF-8")
    assert captured.err.splitlines()[-1] == "(cut off by max_tokens or the context length)"


def test_figures(monkeypatch, capsys):
    assert chat(monkeypatch, "Hello\nGo on\n", "--verbose") == 0
    figures = capsys.readouterr().err.splitlines()[-2:]
    num_tokens = len(smollm2_tokenizer().encode(rendered("Hello")))
    assert figures[0].startswith(f"{num_tokens} prompt tokens (0 cached), 5 output tokens in ")
    assert "(32 cached), 5 output tokens in " in figures[1], "the prefix cache has the turn before"


@pytest.mark.parametrize("first", [b"Hello\n", b"/reset\nHello\n"])
def test_a_byte_order_mark(monkeypatch, prompts, first):
    """Only the first one is none of the text."""
    assert chat(monkeypatch, b"\xef\xbb\xbf" + first + b"/reset\n\xef\xbb\xbfHello\n") == 0
    assert prompts == [rendered("Hello"), rendered("\ufeffHello")]


def test_room_for_answers_must_be_known(monkeypatch, capsys):
    """With a full context, answers would have one token."""
    give_stdin(monkeypatch, b"Hello\n")
    with monkeypatch.context() as patch:
        patch.setattr(LLMEngine, "from_engine_args", None)
        assert main(on_tiny_llama("chat", "--truncate-prompt-tokens", "-1")) == 2
    assert "truncate_prompt_tokens is -1, which would leave" in (error := capsys.readouterr().err)
    assert "--max-tokens" in error


def test_truncation_goes_on_when_the_context_is_full(monkeypatch, capsys, prompts):
    lines = ("word " * 100 + "\n") * 4
    assert chat(monkeypatch, lines, "--truncate-prompt-tokens", "-1", "--verbose") == 0
    assert len(prompts) == 4
    assert capsys.readouterr().err.splitlines()[-1].startswith("251 prompt tokens ")


class Failing(LogitsProcessor):
    """Fails at the second token of whoever says so."""

    arguments = frozenset()

    def new_request(self, params):
        def process(prompt_ids, output_ids, logits):
            if "fail" in smollm2_tokenizer().decode(prompt_ids)[-30:] and len(output_ids) > 0:
                raise RuntimeError("it broke")

        return process


def test_an_answer_that_fails(llm, monkeypatch, capsys, prompts):
    """What was shown of it stays, and the conversation goes on."""
    assert chat(monkeypatch, "Please fail\nGo on\n", "--logits-processors", f"{__name__}:Failing") == 1
    captured = capsys.readouterr()
    first = captured.out.splitlines()[0]
    assert prompts == [rendered("Please fail"), rendered("Please fail", first, "Go on")]
    (failure,) = [line for line in captured.err.splitlines() if line.startswith("pelton: ")]
    assert failure.startswith("pelton: the answer failed: ")
    assert "it broke" in failure


def test_a_first_message_that_is_too_long(llm, monkeypatch, capsys, prompts):
    assert chat(monkeypatch, "word " * 300 + "\nHello\n") == 1
    assert prompts[1:] == [rendered("Hello")]
    captured = capsys.readouterr()
    assert captured.out == answer(llm, rendered("Hello")) + "\n"
    assert "pelton: This model's maximum context length is 256 tokens" in captured.err


def test_the_rest_of_the_context_is_for_the_answer(monkeypatch, capsys):
    give_stdin(monkeypatch, b"Hello\n")
    assert main(on_tiny_llama("chat", "--ignore-eos", "--verbose")) == 0
    num_tokens = len(smollm2_tokenizer().encode(rendered("Hello")))
    assert f" {256 - num_tokens} output tokens in " in capsys.readouterr().err


def test_a_model_without_a_chat_template(monkeypatch, capsys, tmp_path):
    without_template = without_chat_template(tmp_path)
    give_stdin(monkeypatch, b"Hello\n")
    assert main(["chat", "--model", without_template]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last == "pelton: the model has no chat template; give one with --chat-template FILE"
    template = tmp_path / "template"
    template.write_text("{{ messages[-1].content }}")
    give_stdin(monkeypatch, b"Hello\n")
    assert main(["chat", "--model", without_template, "--max-tokens", "2", "--chat-template", str(template)]) == 0


def test_a_template_that_refuses_system_messages(monkeypatch, capsys, prompts, tmp_path):
    template = tmp_path / "template"
    template.write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages | length }}"
    )
    flags = ["--chat-template", str(template)]
    assert chat(monkeypatch, "Hello\n", *flags, "--system", "Be kind") == 2
    assert "no system" in capsys.readouterr().err
    assert chat(monkeypatch, "Hello\n/system Be kind\nGo on\n", *flags) == 1
    assert prompts == ["1", "3"], "what was said stays"


@pytest.mark.parametrize("flag", ["--n", "--logprobs", "--prompt-logprobs", "--no-detokenize"])
def test_flags_that_a_conversation_has_no_use_for(capsys, flag):
    with pytest.raises(SystemExit) as end:
        main(["chat", flag])
    assert end.value.code == 2
    assert f"unrecognized arguments: {flag}" in capsys.readouterr().err


def test_no_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert main(on_tiny_llama("chat")) == 0


def test_a_pipe():
    """Answers come while the pipe is open."""
    command = [*PELTON, *on_tiny_llama("chat", *FLAGS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        process.stdin.write("Hello\n")
        process.stdin.flush()
        first = process.stdout.readline()
        out, errors = process.communicate("/reset\nHello\n", timeout=60)
    assert first.strip()
    assert out == first
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk():
    command = [*PELTON, *on_tiny_llama("chat", *FLAGS)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, input="Hello\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("pelton: the output: ")
