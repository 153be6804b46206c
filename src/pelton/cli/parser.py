"""The argument parser of all commands."""

import argparse
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """Takes flags by their full names only, and says what is wrong in one line."""

    def __init__(self, prog: str, **kwargs: str) -> None:
        super().__init__(prog=prog, allow_abbrev=False, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"pelton: {message} (see {self.prog} --help)\n")
