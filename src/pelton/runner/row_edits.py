"""What one request's parameters, and its own processors, do to its logits before sampling."""

from collections.abc import Sequence

import numpy as np

from pelton.core.messages import EngineCoreRequest
from pelton.ops import mask_words
from pelton.ops.arrays import Int32, Int64, UInt32
from pelton.runner.custom_processors import RowFunction
from pelton.runner.token_counts import TokenCounts

_NO_IDS = np.zeros(0, np.int32)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FLOAT32_TINY = float(np.finfo(np.float32).tiny)


def within_float32(value: float) -> float:
    """A positive number, kept from overflowing to infinity or to 0 in float32."""
    return min(max(value, _FLOAT32_TINY), _FLOAT32_MAX)


def needs_edits(message: EngineCoreRequest) -> bool:
    """Whether a request's parameters change its logits before sampling."""
    params = message.sampling_params
    return bool(
        params.has_penalties
        or params.logit_bias
        or params.min_tokens
        or params.allowed_token_ids is not None
        or message.bad_words_token_ids
        or params.structured_outputs is not None
    )


class RowEdits:
    """Processors, masks, biases and penalties of one request, as they stand at each of its tokens."""

    def __init__(self, message: EngineCoreRequest, functions: Sequence[RowFunction], vocab_size: int) -> None:
        params = message.sampling_params
        self.functions = functions
        self._vocab_size = vocab_size
        self._bad_words = _by_prefix(message.bad_words_token_ids)
        mask = None if params.allowed_token_ids is None else _mask_of(params.allowed_token_ids, vocab_size)
        self._mask = self._without(mask, self._bad_words.pop(0, {}).get((), ()))
        ends = list(params.end_token_ids(message.eos_token_ids))
        self._min_tokens = params.min_tokens
        self._early_mask = self._without(self._mask, ends) if params.min_tokens else self._mask
        biases = params.logit_bias or {}
        self.biases = np.array(list(biases), np.int32), np.array(list(biases.values()), np.float32)
        """Distinct token ids and what is added to their logits."""
        repetition = within_float32(params.repetition_penalty)
        self.penalties = (repetition, params.frequency_penalty, params.presence_penalty)
        self._counts: TokenCounts | None = None
        if params.has_penalties:
            # Only repetition looks at the prompt.
            self._counts = TokenCounts(message.prompt_token_ids if params.repetition_penalty != 1.0 else ())
        self.is_mask_only = not (functions or biases or params.has_penalties)
        """Whether nothing is changed where there is no mask."""

    def mask_at(self, output_ids: Int32, constraint: UInt32 | None) -> UInt32 | None:
        """The tokens that may follow these, [ceil(V / 32)]: bit v % 32 of word v // 32 is token v's. None: all may.

        `constraint` is what the constraint on the output allows, in the same form.
        """
        mask = self._early_mask if len(output_ids) < self._min_tokens else self._mask
        if self._bad_words:
            mask = self._without(mask, self._completing(output_ids))
        if mask is None or constraint is None:
            return constraint if mask is None else mask
        return mask & constraint

    def counts_at(self, output_ids: Int32) -> tuple[Int32, Int32]:
        """The tokens that the penalties look at, and how often the output has them; none without penalties.

        The arrays are valid until the next call.
        """
        return (_NO_IDS, _NO_IDS) if self._counts is None else self._counts.at(output_ids)

    def _completing(self, output_ids: Int32) -> list[int]:
        """The last tokens of bad words whose other tokens the output ends with."""
        found: list[int] = []
        for length, last_ids in self._bad_words.items():
            if length <= len(output_ids):
                found += last_ids.get(tuple(output_ids[-length:].tolist()), ())
        return found

    def _without(self, mask: UInt32 | None, token_ids: Sequence[int]) -> UInt32 | None:
        """A copy of the mask with these tokens ruled out; the mask itself if there are none."""
        if not token_ids:
            return mask
        mask = np.full(mask_words(self._vocab_size), 2**32 - 1, np.uint32) if mask is None else mask.copy()
        words, bits = _positions(token_ids)
        np.bitwise_and.at(mask, words, ~bits)
        return mask


def _mask_of(token_ids: Sequence[int], vocab_size: int) -> UInt32:
    mask = np.zeros(mask_words(vocab_size), np.uint32)
    np.bitwise_or.at(mask, *_positions(token_ids))
    return mask


def _positions(token_ids: Sequence[int]) -> tuple[Int64, UInt32]:
    """Each token's word of a mask, and its bit in there."""
    ids = np.array(token_ids, np.int64)
    return ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32)


def _by_prefix(words: Sequence[Sequence[int]]) -> dict[int, dict[tuple[int, ...], list[int]]]:
    """Number of tokens before the last one -> those tokens -> the last ones of all such words."""
    by_length: dict[int, dict[tuple[int, ...], list[int]]] = {}
    for word in words:
        *prefix, last = word
        by_length.setdefault(len(prefix), {}).setdefault(tuple(prefix), []).append(last)
    return by_length
