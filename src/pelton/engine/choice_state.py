"""One choice of a request: its tokens, text and log probabilities so far."""

from collections.abc import Sequence
from copy import copy

from pelton.core.messages import EngineCoreOutput, EngineCoreRequest
from pelton.core.outputs import CompletionOutput, Logprob
from pelton.engine.logprob_entries import logprob_entries
from pelton.engine.metrics import SequenceStats
from pelton.engine.stop_strings import StopStrings
from pelton.tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ChoiceState:
    """What the user has not been told yet, or all there is: `take_new` and `snapshot` make outputs of either kind."""

    __slots__ = (
        "_cumulative_logprob",
        "_detokenizer",
        "_includes_stop",
        "_logprobs",
        "_min_tokens",
        "_stops",
        "_text",
        "_token_ids",
        "_tokenizer",
        "finish_reason",
        "has_news",
        "id",
        "index",
        "stats",
        "stop_reason",
    )

    def __init__(self, message: EngineCoreRequest, tokenizer: Tokenizer) -> None:
        params = message.sampling_params
        self.id = message.request_id
        """The engine core's id of it."""
        self.index = message.choice
        self.stats = SequenceStats(message.arrival_time, len(message.prompt_token_ids))
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.has_news = False
        """Whether something was added since the last output."""
        self._tokenizer = tokenizer if params.detokenize else None
        self._detokenizer = None
        if params.detokenize:
            self._detokenizer = tokenizer.detokenizer(params.skip_special_tokens, params.spaces_between_special_tokens)
        self._includes_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        strings = params.stop_strings
        self._stops = StopStrings(strings, include=self._includes_stop) if strings else None
        self._token_ids: list[int] = []
        self._text: list[str] = []
        """Pieces of text; joined when an output is made."""
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._cumulative_logprob = 0.0

    def add(self, output: EngineCoreOutput) -> None:
        """Take new tokens, or the end. A stop string that the text now holds ends the choice, whatever the core says.

        Does not count the tokens in `stats`: whoever knows the time does, afterwards.
        """
        self.has_news = True
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self._token_ids.extend(output.new_token_ids)
        if output.logprobs is not None and self._logprobs is not None:
            for position in output.logprobs:
                self._cumulative_logprob += position.logprobs[0]
            self._logprobs += logprob_entries(output.logprobs, self._tokenizer)
        if self._detokenizer is not None and (text := self._new_text(output)):
            self._text.append(text)

    def fail(self, message: str) -> None:
        """End with an error, and with what there is: nothing that could fail is asked."""
        self.has_news = True
        self.finish_reason, self.stop_reason = "error", message

    def _new_text(self, output: EngineCoreOutput) -> str:
        """The text that can be shown now."""
        assert self._detokenizer is not None
        token_ids = output.new_token_ids
        is_end = output.finish_reason is not None
        if output.finish_reason == "stop" and not (self._includes_stop or output.is_complete):
            token_ids = token_ids[:-1]  # EOS, or one of stop_token_ids
        if self._stops is None:
            text = self._detokenizer.add(token_ids)
            return text + self._detokenizer.finish() if is_end else text
        text = ""
        num_early = self._min_tokens - self.stats.num_generation_tokens
        if num_early > 0:
            text = self._early_text(token_ids[:num_early], reaches_minimum=len(output.new_token_ids) >= num_early)
            token_ids = token_ids[num_early:]
        text += self._detokenizer.add(token_ids)
        rest = self._detokenizer.finish() if is_end else ""
        if output.finish_reason in ("stop", "length") and len(output.new_token_ids) > num_early:
            text, rest = text + rest, ""
        text = self._stops.add(text)
        if self._stops.matched is not None:
            self.finish_reason, self.stop_reason = "stop", self._stops.matched
        elif is_end:
            text += self._stops.flush() + rest  # no stop string counts in what remains of an unfinished character
        return text

    def _early_text(self, token_ids: Sequence[int], *, reaches_minimum: bool) -> str:
        """The text of tokens among the first `min_tokens`. No stop string may end in it, nor in what is still to
        come of it: whole characters that the detokenizer holds back."""
        assert self._detokenizer is not None
        assert self._stops is not None
        text = self._detokenizer.add(token_ids)
        self._stops.exempt(len(text))
        if reaches_minimum:
            self._stops.exempt(len(copy(self._detokenizer).finish().rstrip(_REPLACEMENT)))
        return text

    def snapshot(self, *, copied: bool) -> CompletionOutput:
        """All there is. `copied`: with lists of its own, which later tokens do not change."""
        self._text = ["".join(self._text)]
        completion = self._output()
        if copied:
            completion.token_ids = self._token_ids.copy()
            completion.logprobs = None if self._logprobs is None else self._logprobs.copy()
        self.has_news = False
        return completion

    def take_new(self) -> CompletionOutput:
        """What was added since the last output."""
        completion = self._output()
        self._text, self._token_ids = [], []
        self._logprobs = None if self._logprobs is None else []
        self.has_news = False
        return completion

    def _output(self) -> CompletionOutput:
        return CompletionOutput(
            index=self.index,
            text="".join(self._text),
            token_ids=self._token_ids,
            cumulative_logprob=None if self._logprobs is None else self._cumulative_logprob,
            logprobs=self._logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
