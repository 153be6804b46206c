"""Finds stop strings in text that arrives piece by piece."""

from bisect import bisect_right
from collections.abc import Sequence


class StopStrings:
    """Passes text on, except a tail that could still become a stop string; ends at the first match.

    The first match is the one that begins first; among those that begin together, the one that is listed first
    and complete. With `include`, the text ends after the match, else before it.
    """

    def __init__(self, strings: Sequence[str], *, include: bool = False) -> None:
        self._strings = strings
        self._include = include
        self._sorted = sorted(strings)
        self._first_chars = frozenset(string[0] for string in strings)
        self._longest = max(map(len, strings))
        self._held = ""
        """Text not passed on yet: the shortest tail that holds every possible beginning of a stop string."""
        self._num_exempt = 0
        """Characters, counted from the beginning of what is held, in which no stop string may end."""
        self.matched: str | None = None
        """The stop string that was found."""

    def exempt(self, num_chars: int) -> None:
        """No stop string may end in the next characters. They follow others that are exempt, or come first."""
        self._num_exempt += num_chars

    def add(self, text: str) -> str:
        """Take new text; return what can be shown now."""
        # A match ends in the new text, and not in what is exempt: what was held before has been searched.
        num_done = max(len(self._held), self._num_exempt)
        text = self._held + text
        found = [
            (at, string)
            for string in self._strings
            if (at := text.find(string, max(0, num_done + 1 - len(string)))) >= 0
        ]
        if found:
            at, self.matched = min(found, key=lambda pair: pair[0])
            self._held = ""
            return text[: at + len(self.matched)] if self._include else text[:at]
        num_shown = self._first_beginning(text)
        self._held = text[num_shown:]
        self._num_exempt = max(0, self._num_exempt - num_shown)
        return text[:num_shown]

    def flush(self) -> str:
        """No more text will come: what was held back is text like any other."""
        text, self._held = self._held, ""
        return text

    def _first_beginning(self, text: str) -> int:
        """Where the longest tail begins that a longer stop string begins with; the text's length if there is none."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at] in self._first_chars:
                tail = text[at:]
                after = bisect_right(self._sorted, tail)  # strings that begin with the tail follow it at once
                if after < len(self._sorted) and self._sorted[after].startswith(tail):
                    return at
        return len(text)
