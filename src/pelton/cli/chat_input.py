"""Lines that a person types, or that a program writes, on standard input."""

import sys
from codecs import BOM_UTF8
from contextlib import suppress
from importlib import import_module

from pelton.cli.messages import system_errors_of
from pelton.loader.text_files import decode_utf8

PROMPT_MARK = "> "


class ChatInput:
    """Reads lines; at a terminal with a mark before them and, where Python has it, with readline's editing."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._is_first = True
        self._can_edit = self.is_terminal and sys.stdout.isatty()
        if self._can_edit:
            with suppress(ImportError):
                # It writes to the terminal as it starts, and then serves `input`.
                import_module("readline")

    def read(self) -> str | None:
        """The next line, without its end; None at the end. Raises ValueError for what is not UTF-8."""
        if sys.stdin is None:
            return None
        if not self.is_terminal:
            with system_errors_of("standard input"):
                line = sys.stdin.buffer.readline()
            if self._is_first:
                line = line.removeprefix(BOM_UTF8)
                self._is_first = False
            return decode_utf8(line, "the line").removesuffix("\n").removesuffix("\r") if line else None
        try:
            if self._can_edit:
                return input(PROMPT_MARK)
            print(PROMPT_MARK, end="", file=sys.stderr, flush=True)
            text = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise ValueError(f"the line is not UTF-8: {error}") from None
        except EOFError:
            return None
        return text.removesuffix("\n") if text else None

    @property
    def has_unsent_text(self) -> bool:
        """Whether the line that an interrupt ended had text, as far as readline can tell."""
        readline = sys.modules.get("readline")
        return self._can_edit and readline is not None and bool(readline.get_line_buffer())
