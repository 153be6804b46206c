"""Finds stop strings in text that arrives piece by piece."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on, except a tail that could still become a stop string; ends at the first match.

    The first match is the one that begins first; among those that begin together, the one that is listed first
    and complete.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""
        """Text not passed on yet: the shortest tail that holds every possible beginning of a stop string."""
        self.matched: str | None = None
        """The stop string that was found."""

    def add(self, text: str) -> str:
        """Take new text; return what can be shown now."""
        text = self._held + text
        found = [(at, string) for string in self._strings if (at := text.find(string)) >= 0]
        if found:
            at, self.matched = min(found, key=lambda pair: pair[0])
            self._held = ""
            return text[:at]
        keep = max(_overlap(text, string) for string in self._strings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """No more text will come: what was held back is text like any other."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, string: str) -> int:
    """Length of the longest proper prefix of `string` that `text` ends with."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
