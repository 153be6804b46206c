"""Texts of several requests on standard output, in the order of their prompts."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pelton.cli.messages import show
from pelton.core.outputs import RequestOutput

if TYPE_CHECKING:
    from pelton.engine.llm_engine import LLMEngine

Choice = tuple[str, int]
"""Request id and index of one of its outputs."""


def print_in_order(
    engine: "LLMEngine", headings: dict[Choice, str], on_output: Callable[[RequestOutput], None]
) -> None:
    """Print the outputs as they grow: the first unfinished one live, later ones in their turn.

    `headings` has every expected output, in the order in which they are to be printed, with the line before it.
    Requests must send what is new (`DELTA`).
    """
    pending = dict(headings)
    finished: set[Choice] = set()
    while pending:
        for output in engine.step():
            on_output(output)
            for completion in output.outputs:
                choice = output.request_id, completion.index
                pending[choice] += completion.text
                if completion.finish_reason is not None:
                    finished.add(choice)
        _print_due(pending, finished)


def _print_due(pending: dict[Choice, str], finished: set[Choice]) -> None:
    for choice in list(pending):
        show(pending[choice], end="")
        pending[choice] = ""
        if choice not in finished:
            break
        show("")
        del pending[choice]


def headings_of(request_ids: Sequence[str], names: Sequence[str], num_choices: int) -> dict[Choice, str]:
    """Lines before the outputs of requests: their prompts' names if there are several, then the choice's number."""
    headings: dict[Choice, str] = {}
    for request_id, name in zip(request_ids, names, strict=True):
        for index in range(num_choices):
            prompt_line = f"=== {name}\n" if len(names) > 1 and index == 0 else ""
            choice_line = f"--- choice {index + 1}\n" if num_choices > 1 else ""
            headings[request_id, index] = prompt_line + choice_line
    return headings
