"""Beam search: which sequences to extend, and which are the best in the end. It runs no model."""

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pelton.config.sampling import SamplingConfig
from pelton.core.outputs import Logprob
from pelton.sampling_params import BeamSearchParams, SamplingParams
from pelton.tokenizer import Tokenizer

_MAX_LOG_DIVISOR = 600.0
"""e to this power, and one over it, are far from overflowing."""


@dataclass(slots=True)
class BeamSearchSequence:
    """One sequence of a beam search, with vLLM's field names."""

    tokens: list[int]
    """Prompt and output. An end-of-sequence token is only there with `include_stop_str_in_output`."""
    logprobs: list[dict[int, Logprob]]
    """The most likely tokens at each position of the output, the end-of-sequence token's included."""
    cum_logprob: float = 0.0
    """Sum of the output's log probabilities, the end-of-sequence token's included."""
    text: str | None = None
    """Of all tokens, special ones too; None while the search goes on."""
    finish_reason: str | None = None
    """`stop`, `length` or `error`; None while the search goes on."""
    stop_reason: int | str | None = None
    """The end-of-sequence token, or an error's message."""


@dataclass(slots=True)
class BeamSearchOutput:
    """What came of one prompt."""

    sequences: list[BeamSearchSequence]
    """The best first, `beam_width` of them if there are as many."""


class BeamSearch:
    """The search that begins at one prompt.

    Every live sequence is extended by each of its `2 * beam_width` most likely tokens. Extensions by an
    end-of-sequence token are complete; of the others, the `beam_width` best live on. As in vLLM, a sequence's score is
    `cum_logprob / length ** length_penalty`, where the length counts prompt and output, but not the token that
    completed it.
    """

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        params: BeamSearchParams,
        eos_token_ids: Collection[int],
        max_model_len: int,
    ) -> None:
        self._params = params
        self._eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._max_length = min(len(prompt_token_ids) + params.max_tokens, max_model_len)
        self._completed: list[BeamSearchSequence] = []
        """The best so far, at most `beam_width`, in order."""
        self._failed: list[BeamSearchSequence] = []
        self.live = [BeamSearchSequence(list(prompt_token_ids), [])]
        """Sequences that are to be extended, all of one length, the best first; none when the search is over."""

    def advance(self, next_logprobs: Sequence[dict[int, Logprob]]) -> None:
        """Extend the live sequences.

        `next_logprobs` has an entry for each: at least the `2 * beam_width` most likely next tokens, or all that are
        possible if these are fewer. Less likely ones are not looked at.
        """
        extensions = []
        for sequence, entries in zip(self.live, next_logprobs, strict=True):
            for token_id, entry in entries.items():
                if entry.rank > 2 * self._params.beam_width:
                    continue
                if token_id in self._eos_token_ids:
                    self._completed.append(self._stopped(sequence, token_id, entries))
                else:
                    extensions.append((sequence.cum_logprob + entry.logprob, sequence, token_id, entries))
        # Of equal length, so the order of the sums is that of the scores. The first of equals comes first.
        best = heapq.nlargest(self._params.beam_width, extensions, key=lambda extension: extension[0])
        self.live = [
            BeamSearchSequence([*sequence.tokens, token_id], [*sequence.logprobs, entries], total)
            for total, sequence, token_id, entries in best
        ]
        if self.live and len(self.live[0].tokens) >= self._max_length:
            for sequence in self.live:
                sequence.finish_reason = "length"
            self._completed += self.live
            self.live = []
        self._completed = sorted(self._completed, key=self._score, reverse=True)[: self._params.beam_width]
        if self.live and not self._can_improve():
            self.live = []

    def fail(self, message: str) -> None:
        """End the search because its sequences cannot be extended."""
        for sequence in self.live:
            sequence.finish_reason, sequence.stop_reason = "error", message
        self._failed, self.live = self.live, []

    def result(self, tokenizer: Tokenizer) -> BeamSearchOutput:
        """The best sequences of a search that is over; those that failed first, lest they be overlooked."""
        assert not self.live, "the search goes on"
        sequences = (self._failed + self._completed)[: self._params.beam_width]
        for sequence in sequences:
            sequence.text = tokenizer.decode(sequence.tokens, skip_special_tokens=False)
        return BeamSearchOutput(sequences)

    def _stopped(
        self, sequence: BeamSearchSequence, eos_token_id: int, entries: dict[int, Logprob]
    ) -> BeamSearchSequence:
        kept = [eos_token_id] if self._params.include_stop_str_in_output else []
        return BeamSearchSequence(
            [*sequence.tokens, *kept],
            [*sequence.logprobs, entries],
            sequence.cum_logprob + entries[eos_token_id].logprob,
            finish_reason="stop",
            stop_reason=eos_token_id,
        )

    def _score(self, sequence: BeamSearchSequence) -> float:
        has_eos = sequence.finish_reason == "stop" and self._params.include_stop_str_in_output
        return self._penalized(sequence.cum_logprob, len(sequence.tokens) - has_eos)

    def _penalized(self, cum_logprob: float, length: int) -> float:
        return float(cum_logprob / length**self._params.length_penalty)

    def _can_improve(self) -> bool:
        """Whether an extension of the best live sequence may yet be among the best.

        Sums of log probabilities only fall, so the best to come is today's sum with the length that suits it best.
        """
        if len(self._completed) < self._params.beam_width:
            return True
        best = self.live[0]
        length = self._max_length if self._params.length_penalty > 0 else len(best.tokens)
        return self._penalized(best.cum_logprob, length) > self._score(self._completed[-1])


def own_params(params: Any) -> BeamSearchParams:
    """A copy, checked again: the caller may change what is theirs."""
    if not isinstance(params, BeamSearchParams):
        raise ValueError(f"params must be BeamSearchParams, got {type(params).__name__}")
    return msgspec.structs.replace(params, beam_width=params.beam_width)  # without a change nothing is checked


def next_token_params(
    params: BeamSearchParams, sampling: SamplingConfig, vocab_size: int, max_model_len: int
) -> SamplingParams:
    """The parameters of the requests for the next token of each sequence.

    Raises ValueError where an engine with these arguments cannot tell what the search needs to know.
    """
    num_logprobs = 2 * params.beam_width
    needs = f"beam_width is {params.beam_width}, which needs the log probabilities of {num_logprobs} tokens, but "
    if num_logprobs > vocab_size:
        raise ValueError(f"{needs}the model has {vocab_size}; choose a smaller beam_width")
    if num_logprobs > sampling.most_logprobs(vocab_size):
        raise ValueError(
            f"{needs}max_logprobs allows {sampling.max_logprobs}; choose a smaller beam_width, or start the engine "
            "with a larger max_logprobs"
        )
    most = _MAX_LOG_DIVISOR / math.log(max_model_len)
    if abs(params.length_penalty) > most:
        raise ValueError(
            f"length_penalty must be in [{-most:.4g}, {most:.4g}] for a context of {max_model_len} tokens, "
            f"got {params.length_penalty}"
        )
    if sampling.reports_logits:
        raise ValueError(
            f"beam search needs log probabilities, but logprobs_mode is {sampling.logprobs_mode!r}; "
            "start the engine with raw_logprobs or processed_logprobs"
        )
    if sampling.reports_processed:
        temperature = params.temperature or 1.0
    elif params.temperature not in (0.0, 1.0):
        raise ValueError(
            f"temperature is {params.temperature}, but logprobs_mode='raw_logprobs' gives log probabilities without "
            "one; set temperature to 0, or start the engine with logprobs_mode='processed_logprobs'"
        )
    else:
        temperature = 0.0  # what is sampled does not matter, and this is the least work
    return SamplingParams(temperature=temperature, seed=0, max_tokens=1, logprobs=num_logprobs, ignore_eos=True)
