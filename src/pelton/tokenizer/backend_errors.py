"""The errors of the `tokenizers` library, as Pelton raises them."""

from collections.abc import Iterator
from contextlib import contextmanager

from pelton.error_text import message_of


@contextmanager
def backend_errors(problem: str) -> Iterator[None]:
    """Turn whatever the library raises into a ValueError that begins with `problem`.

    It raises bare Exception, and for what its authors did not expect a PanicException, which cannot be imported
    and is no Exception.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(f"{problem}: {message_of(error)}") from None
        raise
