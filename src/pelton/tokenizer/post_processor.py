"""What the post-processor of a tokenizer.json puts around a text."""

from collections.abc import Mapping
from typing import Any

import tokenizers

from pelton.error_text import shown
from pelton.tokenizer.component_parts import component_parts


def surrounding_ids(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Ids before and after a text. Raises ValueError for a post-processor that Pelton does not know."""
    prefix: list[int] = []
    suffix: list[int] = []
    for part in component_parts(backend.post_processor):
        before, after = _around(part)
        prefix, suffix = before + prefix, suffix + after
    for token_id in prefix + suffix:
        if backend.id_to_token(token_id) is None:
            raise ValueError(f"post_processor puts token {token_id} around a text, which the vocabulary has not")
    return prefix, suffix


def _around(state: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    kind = state["type"]
    if kind == "ByteLevel":
        # It only moves offsets.
        return [], []
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [state["cls"][1]], [state["sep"][1]]
    if kind != "TemplateProcessing":
        raise ValueError(f"post_processor is {kind}, which Pelton does not know")
    sides: tuple[list[int], list[int]] = ([], [])
    num_texts = 0
    for piece in state["single"]:
        if "Sequence" in piece:
            num_texts += 1
            continue
        name = piece["SpecialToken"]["id"]
        token = state["special_tokens"].get(name)
        if token is None:
            raise ValueError(
                f"post_processor puts {shown(name)} around a text, and its special_tokens have no such token"
            )
        sides[min(num_texts, 1)].extend(token["ids"])
    if num_texts != 1:
        raise ValueError(f"post_processor has a template with {num_texts} texts, not one")
    return sides
