"""From the engine core's tokens to what users read: text, stop strings, log probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pelton.core.messages import EngineCoreOutput, TokenLogprobs
from pelton.core.outputs import CompletionOutput, Logprob, RequestOutput
from pelton.engine.input_processor import ProcessedRequest
from pelton.engine.stop_strings import StopStrings
from pelton.sampling_params import RequestOutputKind
from pelton.tokenizer import Tokenizer


@dataclass(slots=True)
class ProcessedOutputs:
    """What one step brought."""

    request_outputs: list[RequestOutput] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    """Requests that a stop string ended: the core does not know yet."""


class _RequestState:
    """One request's text as far as it is known."""

    __slots__ = (
        "cumulative_logprob",
        "detokenizer",
        "kind",
        "logprobs",
        "num_cached_tokens",
        "prompt",
        "prompt_token_ids",
        "request_id",
        "stops",
        "text",
        "token_ids",
    )

    def __init__(self, request: ProcessedRequest, tokenizer: Tokenizer) -> None:
        params = request.message.sampling_params
        self.request_id = request.message.request_id
        self.prompt = request.prompt
        self.prompt_token_ids = request.message.prompt_token_ids
        self.kind = params.output_kind
        self.detokenizer = tokenizer.detokenizer()
        self.stops = StopStrings(params.stop_strings) if params.stop_strings else None
        self.num_cached_tokens = 0
        self.token_ids: list[int] = []
        self.text: list[str] = []
        """Pieces of text; joined when an output is made."""
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.cumulative_logprob = 0.0

    def add(self, output: EngineCoreOutput) -> None:
        """Take new tokens. A stop string that they complete changes the output's finish and stop reasons."""
        new_ids = output.new_token_ids
        self.num_cached_tokens = output.num_cached_tokens
        self.token_ids.extend(new_ids)
        # The token that ends a request is not text: EOS, or one of stop_token_ids.
        text = self.detokenizer.add(new_ids[:-1] if output.finish_reason == "stop" else new_ids)
        if output.finish_reason is not None:
            text += self.detokenizer.finish()
        if self.stops is not None:
            text = self.stops.add(text)
            if self.stops.matched is not None:
                output.finish_reason, output.stop_reason = "stop", self.stops.matched
            elif output.finish_reason is not None:
                text += self.stops.flush()
        if text:
            self.text.append(text)

    def add_logprobs(self, positions: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> None:
        assert self.logprobs is not None
        for position in positions:
            self.cumulative_logprob += position.logprobs[0]
            ranks = (position.rank, *range(1, len(position.token_ids)))
            entries: dict[int, Logprob] = {}
            for token_id, logprob, rank in zip(position.token_ids, position.logprobs, ranks, strict=True):
                if token_id not in entries:
                    entries[token_id] = Logprob(logprob, rank, tokenizer.token_text(token_id))
            self.logprobs.append(entries)

    def make_output(self, output: EngineCoreOutput) -> RequestOutput:
        text = "".join(self.text)
        completion = CompletionOutput(
            index=0,
            text=text,
            token_ids=self.token_ids,
            cumulative_logprob=None if self.logprobs is None else self.cumulative_logprob,
            logprobs=self.logprobs,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )
        if self.kind is RequestOutputKind.DELTA:
            self.text, self.token_ids = [], []
            self.logprobs = None if self.logprobs is None else []
        else:
            self.text = [text]
            if output.finish_reason is None:  # the caller's copy must not grow
                completion.token_ids = self.token_ids.copy()
                completion.logprobs = None if self.logprobs is None else self.logprobs.copy()
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[completion],
            finished=output.finish_reason is not None,
            num_cached_tokens=self.num_cached_tokens,
        )


class OutputProcessor:
    """Detokenizes what the core emits, applies stop strings, builds `RequestOutput`s."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._states: dict[str, _RequestState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def add_request(self, request: ProcessedRequest) -> None:
        """Expect outputs of a request. Raises ValueError if its id is in use."""
        if request.message.request_id in self._states:
            raise ValueError(f"request_id {request.message.request_id!r} is in use by a request that has not finished")
        self._states[request.message.request_id] = _RequestState(request, self._tokenizer)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states

    def abort_requests(self, request_ids: Sequence[str]) -> list[RequestOutput]:
        """Final outputs of requests that the user ended; unknown ids are ignored."""
        return [self._end(i, "abort", None) for i in dict.fromkeys(request_ids) if i in self._states]

    def fail_all(self, message: str) -> list[RequestOutput]:
        """Final outputs, with an error, of all requests."""
        return [self._end(request_id, "error", message) for request_id in list(self._states)]

    def _end(self, request_id: str, finish_reason: str, stop_reason: str | None) -> RequestOutput:
        state = self._states.pop(request_id)
        ending = EngineCoreOutput(request_id, [], finish_reason, stop_reason, num_cached_tokens=state.num_cached_tokens)
        state.add(ending)
        return state.make_output(ending)

    def process(self, core_outputs: Sequence[EngineCoreOutput]) -> ProcessedOutputs:
        processed = ProcessedOutputs()
        for output in core_outputs:
            state = self._states.get(output.request_id)
            if state is None:
                continue  # aborted while the step ran
            core_finished = output.finish_reason is not None
            if output.logprobs is not None and state.logprobs is not None:
                state.add_logprobs(output.logprobs, self._tokenizer)
            state.add(output)
            finished = output.finish_reason is not None
            if finished:
                del self._states[output.request_id]
                if not core_finished:
                    processed.aborts.append(output.request_id)
            if finished or state.kind is not RequestOutputKind.FINAL_ONLY:
                processed.request_outputs.append(state.make_output(output))
        return processed
