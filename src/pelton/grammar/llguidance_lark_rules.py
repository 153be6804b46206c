"""Whether a grammar in Lark's notation has a finite text. It is read loosely, for llguidance reads it strictly."""

import re

ANYTHING = "§"
"""Stands for a quoted text, an expression or a schema."""

_RULE = re.compile(r"^[ \t]*[?!]*(?P<name>[A-Za-z_]\w*)(?:\[[^\]\n]*\]|\{[^}\n]*\}|\.-?\d+)*[ \t]*:", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*%[^\n]*", re.MULTILINE)
_ALIAS = re.compile(r"->\s*\w+")
_PIECE = re.compile(r"[A-Za-z_]\w*|\{[^}]*\}|~\d+(?:\.\.\d+)?|[^\s]")
_NONE_IS_ENOUGH = re.compile(r"[?*]|~0|\{\s*(?:0|,)")
_MAX_PASSES = 20
_MAX_DEPTH = 100


def has_finite_text(grammar: str) -> bool:
    """False only if each text of `start` would have to go on without end. The grammar has no comments, and `ANYTHING`
    in place of what is no rule."""
    grammar = _ALIAS.sub("", _DIRECTIVE.sub("", grammar))
    headers = list(_RULE.finditer(grammar))
    ends = [header.start() for header in headers[1:]] + [len(grammar)]
    rules = {
        header["name"]: _PIECE.findall(grammar[header.end() : end]) for header, end in zip(headers, ends, strict=True)
    }
    finite = dict.fromkeys(rules, False)
    order = list(rules.items())
    for _ in range(_MAX_PASSES):
        num_before = sum(finite.values())
        order.reverse()
        for name, body in order:
            finite[name] = finite[name] or _Body(body, finite).is_finite()
        if sum(finite.values()) == num_before:
            return finite.get("start", True)
    return True


class _Body:
    """One rule's alternatives, as pieces."""

    def __init__(self, pieces: list[str], finite: dict[str, bool]) -> None:
        self._pieces, self._finite = [*pieces, ""], finite
        self._index = 0

    def is_finite(self, depth: int = 0) -> bool:
        """Of what follows, up to the bracket that closes it."""
        if depth > _MAX_DEPTH:
            return True
        found = self._sequence(depth)
        while self._pieces[self._index] == "|":
            self._index += 1
            found = self._sequence(depth) or found
        return found

    def _sequence(self, depth: int) -> bool:
        found = True
        while self._pieces[self._index] not in ("|", ")", "]", ""):
            found = self._item(depth) and found
        return found

    def _item(self, depth: int) -> bool:
        piece = self._pieces[self._index]
        self._index += 1
        found = self._finite.get(piece, True)
        if piece in ("(", "["):
            found = self.is_finite(depth + 1) or piece == "["
            self._index += self._pieces[self._index] in (")", "]")
        if _NONE_IS_ENOUGH.match(self._pieces[self._index]):
            found = True
        return found
