"""One request of a user, with all its choices, on the way out."""

from collections.abc import Iterable, Sequence

import msgspec

from pelton.core.messages import EngineCoreRequest, TokenLogprobs
from pelton.core.outputs import Logprob, RequestMetrics, RequestOutput
from pelton.engine.choice_state import ChoiceState
from pelton.engine.input_processor import ProcessedRequest
from pelton.engine.logprob_entries import logprob_entries
from pelton.engine.metrics import EngineMetrics
from pelton.sampling_params import RequestOutputKind
from pelton.tokenizer import Tokenizer


class RequestState:
    """What a user's outputs are made of."""

    __slots__ = (
        "_arrival_time",
        "_is_delta",
        "_prompt",
        "_prompt_logprobs",
        "_prompt_token_ids",
        "_tokenizer",
        "choices",
        "id",
        "is_final_only",
        "metrics",
    )

    def __init__(
        self,
        request: ProcessedRequest,
        messages: Sequence[EngineCoreRequest],
        tokenizer: Tokenizer,
        metrics: EngineMetrics,
    ) -> None:
        """`messages`: those of its choices. `metrics`: of the core that runs it."""
        params = request.message.sampling_params
        self.id = request.message.request_id
        self.metrics = metrics
        self.choices = [ChoiceState(message, tokenizer) for message in messages]
        self.is_final_only = params.output_kind is RequestOutputKind.FINAL_ONLY
        self._is_delta = params.output_kind is RequestOutputKind.DELTA
        self._arrival_time = request.message.arrival_time
        self._prompt = request.prompt
        self._prompt_token_ids = request.message.prompt_token_ids
        self._tokenizer = tokenizer if params.detokenize else None
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            self._prompt_logprobs = [None]

    @property
    def is_finished(self) -> bool:
        """Whether all choices have ended."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def add_prompt_logprobs(self, positions: Iterable[TokenLogprobs]) -> None:
        """Those of the next prompt tokens."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs += logprob_entries(positions, self._tokenizer)

    def make_output(self) -> RequestOutput:
        finished = self.is_finished
        if self._is_delta:
            outputs = [choice.take_new() for choice in self.choices if choice.has_news]
        else:
            outputs = [choice.snapshot(copied=not finished) for choice in self.choices]
        return RequestOutput(
            request_id=self.id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=outputs,
            finished=finished,
            num_cached_tokens=self.choices[0].stats.num_cached_tokens,
            prompt_logprobs=self._prompt_logprobs_to_show(),
            metrics=self._metrics() if finished else None,
        )

    def _prompt_logprobs_to_show(self) -> list[dict[int, Logprob] | None] | None:
        logprobs = self._prompt_logprobs
        if logprobs is None:
            return None
        if len(logprobs) < len(self._prompt_token_ids) and self.choices[0].finish_reason is None:
            return None  # the rest is still to come
        if self._is_delta:
            self._prompt_logprobs = None
        return logprobs

    def _metrics(self) -> RequestMetrics:
        stats = [choice.stats for choice in self.choices]
        first_token_time = _first(s.first_token_time for s in stats)
        return RequestMetrics(
            arrival_time=self._arrival_time,
            scheduled_ts=_first(s.scheduled_time for s in stats),
            first_token_ts=first_token_time,
            last_token_ts=max((s.last_token_time for s in stats if s.last_token_time is not None), default=None),
            first_token_latency=None if first_token_time is None else first_token_time - self._arrival_time,
            num_generation_tokens=sum(s.num_generation_tokens for s in stats),
        )


def messages_of_choices(message: EngineCoreRequest) -> list[EngineCoreRequest]:
    """The core's requests for a user's request: one for each of its `n` choices.

    They share seed and prompt; random numbers differ by the choice. Log probabilities of the prompt are asked once.
    """
    params = message.sampling_params
    if params.n == 1:
        return [message]
    others = params
    if params.prompt_logprobs is not None:
        others = msgspec.structs.replace(params, prompt_logprobs=None)
    return [
        msgspec.structs.replace(
            message,
            request_id=f"{message.request_id}/{index}",
            sampling_params=others if index else params,
            choice=index,
        )
        for index in range(params.n)
    ]


def _first(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)
