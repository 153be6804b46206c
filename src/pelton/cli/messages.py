"""What commands say on standard error."""

import sys


def note(text: str) -> None:
    """A remark, which is no error."""
    print(text, file=sys.stderr, flush=True)


def complain(problem: str) -> None:
    """One line, whatever characters it has from names of files and from what users write."""
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in problem)
    note(f"pelton: {line}")
