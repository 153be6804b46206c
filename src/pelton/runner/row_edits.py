"""What one request's parameters do to its logits before sampling."""

from collections.abc import Sequence

import numpy as np

from pelton.core.messages import EngineCoreRequest
from pelton.ops.arrays import Float32, Int32, UInt32
from pelton.runner.token_counts import TokenCounts

_BAN = -np.inf


class RowEdits:
    """Mask, biases, bans and penalties of one request, as they stand at each of its tokens."""

    def __init__(self, message: EngineCoreRequest, output_ids: Sequence[int], vocab_size: int) -> None:
        params = message.sampling_params
        self.mask = _mask(params.allowed_token_ids, vocab_size)
        self._bad_words = _by_prefix(message.bad_words_token_ids)
        biases = dict(params.logit_bias or {}) | dict.fromkeys(self._bad_words.pop(0, {}).get((), ()), _BAN)
        self._biases = _arrays(biases)
        self._min_tokens = params.min_tokens
        ends = [*(params.stop_token_ids or ()), *(() if params.ignore_eos else message.eos_token_ids)]
        self._early_biases = _arrays(biases | dict.fromkeys(ends, _BAN)) if params.min_tokens else self._biases
        self.penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self.counts: TokenCounts | None = None
        if params.has_penalties:
            # Only repetition looks at the prompt.
            prompt_ids = message.prompt_token_ids if params.repetition_penalty != 1.0 else ()
            self.counts = TokenCounts(prompt_ids, output_ids)

    @staticmethod
    def concern(message: EngineCoreRequest) -> bool:
        """Whether a request has anything of the kind."""
        params = message.sampling_params
        return bool(
            params.has_penalties
            or params.logit_bias
            or params.min_tokens
            or params.allowed_token_ids is not None
            or message.bad_words_token_ids
        )

    def biases_at(self, output_ids: Int32) -> tuple[Int32, Float32]:
        """Distinct token ids and what is added to their logits, for the token after these."""
        ids, biases = self._early_biases if len(output_ids) < self._min_tokens else self._biases
        if self._bad_words and (banned := self._banned_after(output_ids)):
            by_id = dict(zip(ids.tolist(), biases.tolist(), strict=True))
            return _arrays(by_id | dict.fromkeys(banned, _BAN))
        return ids, biases

    def _banned_after(self, output_ids: Int32) -> list[int]:
        """The last tokens of bad words whose other tokens the output ends with."""
        banned: list[int] = []
        for length, last_ids in self._bad_words.items():
            if length <= len(output_ids):
                banned += last_ids.get(tuple(output_ids[-length:].tolist()), ())
        return banned


def _by_prefix(words: Sequence[Sequence[int]]) -> dict[int, dict[tuple[int, ...], list[int]]]:
    """Number of tokens before the last one -> those tokens -> the last ones of all such words."""
    by_length: dict[int, dict[tuple[int, ...], list[int]]] = {}
    for word in words:
        *prefix, last = word
        by_length.setdefault(len(prefix), {}).setdefault(tuple(prefix), []).append(last)
    return by_length


def _arrays(biases: dict[int, float]) -> tuple[Int32, Float32]:
    return np.array(list(biases.keys()), np.int32), np.array(list(biases.values()), np.float32)


def _mask(allowed: Sequence[int] | None, vocab_size: int) -> UInt32 | None:
    """[ceil(V / 32)]: bit v % 32 of word v // 32 says whether token v is allowed."""
    if allowed is None:
        return None
    bits = np.zeros(mask_words(vocab_size) * 32, np.uint8)
    bits[allowed] = 1
    words: UInt32 = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
    return words


def mask_words(vocab_size: int) -> int:
    return -(-vocab_size // 32)
