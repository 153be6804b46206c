"""`pelton chat`: talk with a model."""

import argparse
from contextlib import suppress

from pelton.cli.chat_input import ChatInput
from pelton.cli.chat_template_flag import add_chat_template_flag, given_chat_template
from pelton.cli.conversation import Conversation
from pelton.cli.figures import Figures
from pelton.cli.interrupts import first_interrupt_noted
from pelton.cli.loading import load_engine
from pelton.cli.messages import complain, note, show
from pelton.cli.parser import CommandParser
from pelton.cli.sampling_flags import add_sampling_flags, given_sampling
from pelton.config import EngineArgs
from pelton.core.outputs import RequestOutput

_NOT_IN_CHAT = ("n", "logprobs", "prompt_logprobs", "detokenize")
"""Sampling parameters that a conversation has no use for."""

COMMANDS_HELP = """\
/reset        forget the conversation
/system TEXT  begin anew with TEXT as the system message; without TEXT, with none
/help         show this
/exit         leave; so do Ctrl-D, and Ctrl-C twice
Ctrl-C stops an answer. A message that begins with / needs a space before it."""


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pelton chat",
        description="Talk with a model. A line is a message; commands begin with /, and /help lists them. Standard "
        "output gets the answers and nothing else. If standard input is not a terminal, each line is a turn.",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_chat_template_flag(parser)
    parser.add_argument("--verbose", action="store_true", help="a line of figures on standard error after each answer")
    add_sampling_flags(parser, max_tokens_default="the rest of the context", leave_out=_NOT_IN_CHAT)
    EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Exit status 1 if standard input is no terminal and a line could not be answered."""
    given = given_sampling(options)
    args = EngineArgs.from_cli_args(options)
    chat_template = given_chat_template(options.chat_template)
    if given.get("truncate_prompt_tokens") == -1 and given.get("max_tokens") is None:
        raise ValueError(
            "truncate_prompt_tokens is -1, which would leave room for answers of one token; say with --max-tokens how "
            "long answers may be"
        )
    engine, params = load_engine(args, given, max_tokens=None)
    conversation = Conversation(engine, params, system=options.system, chat_template=chat_template)
    lines = ChatInput()
    chat = Chat(conversation, lines, verbose=options.verbose)
    if lines.is_terminal:
        note(f"This is {args.model.model}; /help lists the commands.")
    chat.run()
    return 1 if chat.num_failures and not lines.is_terminal else 0


class Chat:
    """Lines in, answers out, until somebody leaves."""

    def __init__(self, conversation: Conversation, lines: ChatInput, *, verbose: bool) -> None:
        self.num_failures = 0
        """Lines that could not be answered."""
        self._conversation = conversation
        self._lines = lines
        self._verbose = verbose

    def run(self) -> None:
        """Raises KeyboardInterrupt for the second of two at an empty prompt, and for any without a terminal."""
        was_interrupted = False
        goes_on = True
        while goes_on:
            try:
                goes_on = self._turn()
                was_interrupted = False
            except ValueError as error:
                self.num_failures += 1
                complain(str(error))
            except KeyboardInterrupt:
                is_empty = not self._lines.has_unsent_text
                if not self._lines.is_terminal:
                    raise
                if was_interrupted and is_empty:
                    note("")
                    raise
                was_interrupted = is_empty
                note("\n(Ctrl-C again leaves)" if is_empty else "")

    def _turn(self) -> bool:
        """Read a line and do what it says. Returns whether to go on; raises ValueError."""
        line = self._lines.read()
        if line is None:
            if self._lines.is_terminal:
                note("")
            return False
        if line.startswith("/"):
            return self._command(line)
        if line.strip():
            self._answer(line)
        return True

    def _command(self, line: str) -> bool:
        name, _, text = line.partition(" ")
        text = text.strip()
        if name in ("/reset", "/exit", "/help") and text:
            raise ValueError(f"{name} stands alone, got {text!r} after it")
        match name:
            case "/reset":
                self._conversation.reset()
            case "/system":
                self._conversation.restart(text or None)
            case "/help":
                note(COMMANDS_HELP)
            case "/exit":
                return False
            case _:
                raise ValueError(
                    f"unknown command {name}; there are /reset, /system, /help and /exit, and a message that begins "
                    "with / needs a space before it"
                )
        return True

    def _answer(self, text: str) -> None:
        figures = Figures()
        num_messages = len(self._conversation.messages)

        def take(output: RequestOutput) -> None:
            figures.add(output)
            for completion in output.outputs:
                show(completion.text, end="")

        try:
            if self._lines.is_terminal:
                # Whoever does not want to wait for the end of a step interrupts it, too.
                with suppress(KeyboardInterrupt), first_interrupt_noted() as is_stopped:
                    self._conversation.ask(text, take, is_stopped)
            else:
                self._conversation.ask(text, take, lambda: False)
        except ValueError as error:
            raise ValueError(f"{error} (the message is taken back; /reset forgets the conversation)") from None
        is_kept = len(self._conversation.messages) > num_messages
        if is_kept:
            show("")
        self._remark(figures, is_kept)

    def _remark(self, figures: Figures, is_kept: bool) -> None:
        """What there is to say after an answer. Raises ValueError for one that failed."""
        if self._verbose:
            note(figures.report())
        elif figures.num_cut:
            note("(cut off by max_tokens or the context length)")
        if figures.failures:
            taken_back = "" if is_kept else " (the message is taken back)"
            raise ValueError(f"the answer failed: {figures.failures[0]}{taken_back}")
        if not is_kept:
            note("(stopped before its first word; the message is taken back)")
