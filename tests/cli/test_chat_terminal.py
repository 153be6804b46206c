"""`pelton chat` at a terminal: Ctrl-C, and what readline leaves."""

import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from pelton.cli.chat import Chat
from tests.cli.helpers import PELTON, on_tiny_llama

PATIENCE = 120
"""Seconds until something must have happened. The machine may be busy."""
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A process that has a terminal of its own; keys go through the terminal's driver."""

    def __init__(self, command):
        self._master, slave = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name != "PELTON_STRICT_INVARIANTS"}
        # setsid and the terminal's first opening make it the controlling one, from which Ctrl-C comes.
        starter = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", starter, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment | {"TERM": "dumb"},
            start_new_session=True,
        )
        os.close(slave)
        self._unread = ""

    def type(self, keys):
        os.write(self._master, keys)

    def interrupt_line(self):
        """Ctrl-C at the prompt. Python loses one that falls between two keys, into readline's work; people do not."""
        time.sleep(0.5)
        for _ in range(3):
            self.type(CTRL_C)
            if select.select([self._master], [], [], PATIENCE / 6)[0]:
                return

    def read_until(self, pattern):
        """What was written up to the match of a pattern, that included."""
        end = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self._unread)):
            assert time.monotonic() < end, f"{pattern!r} does not come, but {self._unread!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                self._unread += os.read(self._master, 65536).decode(errors="replace")
        text, self._unread = self._unread[: match.end()], self._unread[match.end() :]
        return text

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def start():
    terminals = []

    def run(*command):
        terminals.append(Terminal([*PELTON, *command]))
        return terminals[-1]

    yield run
    for terminal in terminals:
        terminal.close()


PROMPT = r"(^|\n)> $"


def test_an_interrupt_stops_the_answer(start):
    """What was said stays in the history: the model goes on from there."""
    terminal = start("chat", "--model", "smollm2", "--temperature", "0", "--ignore-eos", "--verbose")
    terminal.read_until(PROMPT)
    terminal.type(b"Count from one to a thousand, in words.\n")
    terminal.read_until(r"words\.\r\n\S+ \S+ \S+")
    terminal.type(CTRL_C)
    figures = terminal.read_until(PROMPT)
    num_prompt_tokens, num_output_tokens = map(int, re.search(r"(\d+) prompt .* (\d+) output", figures).groups())
    assert num_output_tokens < 1000, "the context has room for thousands"
    terminal.type(b"What was that?\n")
    terminal.read_until(r"that\?\r\n\S+")
    terminal.type(CTRL_C)
    figures = terminal.read_until(PROMPT)
    num_tokens, num_cached = map(int, re.search(r"(\d+) prompt tokens \((\d+) cached", figures).groups())
    assert num_tokens > num_prompt_tokens + num_output_tokens
    assert num_cached >= num_prompt_tokens // 16 * 16, "an interrupt costs no blocks"
    terminal.type(CTRL_D)
    assert terminal.process.wait(PATIENCE) == 0


def test_interrupts_at_the_prompt(start):
    """One clears the line. Two at an empty prompt leave, if nothing is typed between them."""
    terminal = start(*on_tiny_llama("chat", "--max-tokens", "2"))
    terminal.read_until(PROMPT)
    for _ in range(2):
        terminal.type(b"half a line")
        terminal.read_until("half a line")
        terminal.interrupt_line()
        assert "leaves" not in terminal.read_until(PROMPT)
    terminal.interrupt_line()
    assert "(Ctrl-C again leaves)" in terminal.read_until(PROMPT)
    terminal.type(b"/reset\n")
    terminal.read_until(PROMPT)
    terminal.interrupt_line()
    assert "(Ctrl-C again leaves)" in terminal.read_until(PROMPT)
    terminal.interrupt_line()
    assert terminal.process.wait(PATIENCE) == 130


class TypedLines:
    """Plays a terminal: lines, exceptions, and then the end."""

    is_terminal = True

    def __init__(self, *lines, has_unsent_text=False):
        self._lines = iter(lines)
        self.has_unsent_text = has_unsent_text

    def read(self):
        line = next(self._lines, None)
        if isinstance(line, type):
            raise line
        return line


class PlayedConversation:
    """Answers nothing; interrupts what it is asked."""

    def __init__(self):
        self.messages = []
        self.num_questions = 0

    def ask(self, text, on_output, is_stopped):
        self.num_questions += 1
        raise KeyboardInterrupt


def test_an_interrupt_of_an_answer_does_not_leave(capsys):
    """Not even with another one at the prompt."""
    conversation = PlayedConversation()
    Chat(conversation, TypedLines("a", KeyboardInterrupt, "b", KeyboardInterrupt), verbose=False).run()
    assert conversation.num_questions == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("(stopped before its first word; the message is taken back)") == 2


@pytest.mark.parametrize("has_unsent_text", [False, True])
def test_two_interrupts_at_the_prompt(has_unsent_text):
    lines = TypedLines(KeyboardInterrupt, KeyboardInterrupt, has_unsent_text=has_unsent_text)
    chat = Chat(PlayedConversation(), lines, verbose=False)
    if has_unsent_text:
        chat.run()
        return
    with pytest.raises(KeyboardInterrupt):
        chat.run()


def test_no_terminal_no_second_chance():
    lines = TypedLines(KeyboardInterrupt)
    lines.is_terminal = False
    with pytest.raises(KeyboardInterrupt):
        Chat(PlayedConversation(), lines, verbose=False).run()
