"""Log probabilities in OpenAI's two shapes, and in vLLM's for prompts. All are finite: JSON knows no infinity."""

from collections.abc import Iterable, Mapping, Sequence

from pelton.core.outputs import Logprob
from pelton.server.responses import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from pelton.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for the log probability of what is impossible."""

Positions = Sequence[Mapping[int, Logprob] | None]


class TextOffsets:
    """Where in a text its tokens begin, in characters. A token that goes on with a character begins where it does."""

    def __init__(self, tokenizer: Tokenizer, start: int, *, skip_special: bool, spaces_between_special: bool) -> None:
        self._detokenizer = tokenizer.detokenizer(skip_special, spaces_between_special)
        self._next = start

    def add(self, token_ids: Iterable[int]) -> list[int]:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._next)
            self._next += len(self._detokenizer.add([token_id]))
        return offsets

    def finish(self) -> int:
        """The length of the text."""
        return self._next + len(self._detokenizer.finish())


def prompt_offsets(tokenizer: Tokenizer, token_ids: Sequence[int], text: str, *, spaces: bool) -> list[int]:
    """`TextOffsets` of a prompt.

    Its special tokens are in the text if the text spells them out, and are not if the tokenizer put them around it.
    """
    for skip_special in (False, True):
        walk = TextOffsets(tokenizer, 0, skip_special=skip_special, spaces_between_special=spaces)
        offsets = walk.add(token_ids)
        if walk.finish() == len(text):
            break
    return [min(offset, len(text)) for offset in offsets]


def completion_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], positions: Positions, offsets: list[int], *, as_ids: bool
) -> CompletionLogprobs:
    """`positions`: None where nothing predicts the token, at the beginning of a prompt.

    The best of all tokens with the same text stands for them in `top_logprobs`. `as_ids`: see `token_string`.
    """
    tokens: list[str] = []
    logprobs: list[float | None] = []
    top: list[dict[str, float] | None] = []
    for token_id, entries in zip(token_ids, positions, strict=True):
        if entries is None:
            tokens.append(f"token_id:{token_id}" if as_ids else tokenizer.token_text(token_id))
            logprobs.append(None)
            top.append(None)
            continue
        tokens.append(token_string(token_id, entries[token_id], as_ids=as_ids))
        logprobs.append(finite(entries[token_id].logprob))
        texts: dict[str, float] = {}
        for other_id, entry in by_rank(entries):
            texts.setdefault(token_string(other_id, entry, as_ids=as_ids), finite(entry.logprob))
        top.append(texts)
    return CompletionLogprobs(tokens, logprobs, top, offsets)


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], positions: Positions, *, with_top: bool, as_ids: bool
) -> ChatLogprobs:
    """`with_top`: the most likely tokens, too, and among them the sampled one. `as_ids`: see `token_string`."""
    content = []
    for token_id, entries in zip(token_ids, positions, strict=True):
        assert entries is not None
        top = [
            TopLogprob(
                token_string(other_id, entry, as_ids=as_ids),
                finite(entry.logprob),
                list(tokenizer.token_bytes(other_id)),
            )
            for other_id, entry in (by_rank(entries) if with_top else ())
        ]
        content.append(
            ChatTokenLogprob(
                token_string(token_id, entries[token_id], as_ids=as_ids),
                finite(entries[token_id].logprob),
                list(tokenizer.token_bytes(token_id)),
                top,
            )
        )
    return ChatLogprobs(content)


def with_top(positions: Positions, number: int) -> Positions:
    """The entries that somebody who asked for so many most likely tokens gets, if more were computed; -1: all."""
    if number == -1 or all(entries is None or len(entries) <= number for entries in positions):
        return positions
    return [entries and _top_of(entries, number) for entries in positions]


def _top_of(entries: Mapping[int, Logprob], number: int) -> Mapping[int, Logprob]:
    """The first entry is the token itself, whose rank may be another's, too, where logits are equal."""
    listed = list(entries.items())
    return dict(listed[:1] + [item for item in listed[1:] if item[1].rank <= number])


def prompt_logprobs(positions: Positions) -> PromptLogprobs:
    return [
        None
        if entries is None
        else {
            token_id: PromptLogprob(finite(entry.logprob), entry.rank, entry.decoded_token)
            for token_id, entry in entries.items()
        }
        for entries in positions
    ]


def token_string(token_id: int, entry: Logprob, *, as_ids: bool) -> str:
    """A token's text; `as_ids`: its id, for those whose text is no Unicode."""
    return f"token_id:{token_id}" if as_ids or entry.decoded_token is None else entry.decoded_token


def finite(logprob: float) -> float:
    """The logprob itself, unless it is lower than `LOWEST`."""
    return max(logprob, LOWEST)


def by_rank(entries: Mapping[int, Logprob]) -> list[tuple[int, Logprob]]:
    """The most likely tokens first; the sampled one last, if it is none of them."""
    return sorted(entries.items(), key=lambda item: item[1].rank)
