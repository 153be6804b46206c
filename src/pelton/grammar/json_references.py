"""The subschemas of one JSON schema, and where its `$ref` lead. Nothing outside the schema is ever looked at."""

import re
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from pelton.error_text import shown
from pelton.grammar.backend import UnsupportedGrammarError

_INDEX = re.compile("[0-9]{1,9}")
MAX_DEPTH = 64
"""Levels of dicts and lists in a schema."""
MAX_NODES = 100_000
"""Dicts and lists in a schema."""

_MAX_SHOWN = 200
_OPAQUE = frozenset(("const", "enum", "default", "examples"))
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))


Path = tuple[str | int, ...]


def pointer(path: Path) -> str:
    """A place in the schema, as a JSON pointer that can be shown; the schema itself is `the top`."""
    text = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
    cut = text[:_MAX_SHOWN]
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)
    return (line if cut == text else f"{line}...") or "the top"


def check_depth(schema: Any, field: str = "json") -> None:
    """Refuse what is nested too deeply, or has too many parts, for recursive readers."""
    level = [schema]
    num_nodes = 0
    for _ in range(MAX_DEPTH + 1):
        parts = [node for node in level if isinstance(node, dict | list)]
        inner = [list(part.values()) if isinstance(part, dict) else part for part in parts]
        if not inner:
            return
        num_nodes += len(inner)
        if num_nodes > MAX_NODES:
            raise UnsupportedGrammarError(f"{field}: the schema has more than {MAX_NODES} parts; make it smaller")
        level = [child for children in inner for child in children]
    raise UnsupportedGrammarError(f"{field}: the schema is nested more than {MAX_DEPTH} levels deep; make it flatter")


class References:
    """Finds what `$ref` means, by JSON pointers, `$anchor` and `$id`."""

    def __init__(self, schema: dict[str, Any], *, old_draft: bool, field: str = "json") -> None:
        """`old_draft`: before 2019-09, where `$id` (or `id`) may hold an anchor and has no meaning beside `$ref`.
        `field` begins the messages."""
        self._field, self._old_draft = field, old_draft
        self._resources: dict[str, Any] = {"": schema}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._bases: dict[int, str] = {}
        self._index(schema, "", "")

    def _index(self, node: Any, base: str, key: str) -> None:
        """`key`: under which keyword the node is, empty for one that is a schema by its place."""
        if isinstance(node, list):
            for entry in node:
                self._index(entry, base, "")
            return
        if not isinstance(node, dict):
            return
        if key in _NAMED:
            for entry in node.values():
                self._index(entry, base, "")
            return
        base = self._identified(node, base)
        self._bases[id(node)] = base
        for name, value in node.items():
            if name not in _OPAQUE:
                self._index(value, base, name)

    def _identified(self, node: dict[str, Any], base: str) -> str:
        if self._old_draft and "$ref" in node:
            return base
        name = node.get("$id", node.get("id") if self._old_draft else None)
        if isinstance(name, str):
            try:
                address, fragment = urldefrag(urljoin(base, name))
            except ValueError:
                raise UnsupportedGrammarError(f"{self._field}: $id is {shown(name)}, which is no address") from None
            if fragment and self._old_draft:
                self._anchors[address or base, fragment] = node
            if address and not (fragment and name.startswith("#")):
                base = address
                self._resources.setdefault(base, node)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = node.get(keyword)
            if isinstance(anchor, str):
                self._anchors[base, anchor] = node
        return base

    def find(self, node: dict[str, Any], reference: str, path: Path) -> Any:
        """The subschema that a `$ref` of the node means. Raises UnsupportedGrammarError, `path` being the node's."""
        base = self._bases.get(id(node), "")
        try:
            address, fragment = urldefrag(reference)
            address = urljoin(base, address) if address else base
        except ValueError:
            raise self._refused(reference, path, "is no address") from None
        resource = self._resources.get(address)
        if resource is None:
            raise self._refused(reference, path, "leads out of the schema; put what it means under $defs")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get((address, fragment))
        else:
            found = self._walk(resource, fragment)
        if not isinstance(found, dict | bool):
            raise self._refused(reference, path, "leads to no schema")
        return found

    def _walk(self, node: Any, fragment: str) -> Any:
        for part in fragment.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict):
                node = node.get(name)
            elif (
                isinstance(node, list) and name.isascii() and name.isdigit() and len(name) < 9 and int(name) < len(node)
            ):
                node = node[int(name)]
            else:
                return None
        return node

    def _refused(self, reference: str, path: Path, why: str) -> UnsupportedGrammarError:
        return UnsupportedGrammarError(f"{self._field}: the $ref {shown(reference)} at {pointer(path)} {why}")
