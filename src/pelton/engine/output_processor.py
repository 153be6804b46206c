"""From the engine core's tokens to what users read: one output per user's request and step."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from pelton.core.messages import EngineCoreOutput, EngineCoreRequest
from pelton.engine.choice_state import ChoiceState
from pelton.engine.input_processor import ProcessedRequest
from pelton.engine.metrics import EngineMetrics
from pelton.engine.request_state import RequestState, messages_of_choices
from pelton.error_text import shown
from pelton.tokenizer import Tokenizer


@dataclass(slots=True)
class ProcessedOutputs:
    """What one step brought."""

    changed: list[RequestState] = field(default_factory=list)
    """Requests that have something to show now; `make_output` makes it."""
    aborts: list[str] = field(default_factory=list)
    """Requests of the core that run for nobody: a stop string ended them, or an interrupt fell into their abort."""


class OutputProcessor:
    """Keeps the requests that have not finished, hands them what the core emits, collects their outputs.

    Users know a request by their id; the core knows each of its choices by an id of its own, which is the same for a
    request of one choice. An id is in use, for users, as long as a request or a choice has it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.metrics: defaultdict[int, EngineMetrics] = defaultdict(EngineMetrics, {0: EngineMetrics()})
        """By the data-parallel rank of the core."""
        self._tokenizer = tokenizer
        self._requests: dict[str, RequestState] = {}
        self._choices: dict[str, tuple[RequestState, ChoiceState]] = {}
        """Choices that have not finished, by the core's id. All belong to requests above, whenever an interrupt comes:
        requests enter before their choices and leave after them."""

    def __len__(self) -> int:
        """Users' requests that have not finished."""
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request or a choice has this id."""
        return request_id in self._requests or request_id in self._choices

    def add_request(self, request: ProcessedRequest, rank: int = 0) -> list[EngineCoreRequest]:
        """Expect outputs of a request from this core. Returns what the core is to be asked: a message for each of the
        request's choices.

        Raises ValueError if its id, or a choice's, is in use.
        """
        messages = messages_of_choices(request.message)
        for request_id in (request.message.request_id, *(message.request_id for message in messages)):
            if request_id in self:
                raise ValueError(f"request_id {shown(request_id)} is in use by a request that has not finished")
        state = RequestState(request, messages, self._tokenizer, self.metrics[rank])
        self._requests[state.id] = state
        for choice in state.choices:
            self._choices[choice.id] = (state, choice)
        return messages

    def state_of(self, request_id: str) -> RequestState:
        """Of a request that has not finished."""
        return self._requests[request_id]

    def discard_request(self, request_id: str) -> None:
        """Forget a request, as if it had never been added."""
        if request_id in self._requests:
            self._forget(self._requests[request_id])

    def core_ids(self, request_ids: Iterable[str]) -> list[str]:
        """What the core calls the choices of these requests.

        An id that nobody here has stays as it is, for the core may still know it; that of a choice is left out, for it
        is not the user's.
        """
        core_ids = []
        for request_id in request_ids:
            if request_id in self._requests:
                core_ids += [choice.id for choice in self._requests[request_id].choices]
            elif request_id not in self._choices:
                core_ids.append(request_id)
        return core_ids

    def abort_requests(self, request_ids: Iterable[str]) -> list[RequestState]:
        """End requests as the user wishes, and return those that had not finished; unknown ids are ignored."""
        states = [self._requests[i] for i in dict.fromkeys(request_ids) if i in self._requests]
        for state in states:
            self._end(state, "abort", None)
        return states

    def fail(self, request_id: str, message: str) -> None:
        """End a request, if it has not finished, with an error, although its outputs cannot be read."""
        request = self._requests.get(request_id)
        if request is None:
            return
        now = monotonic()
        for choice in request.choices:
            if choice.finish_reason is None:
                choice.fail(message)
                request.metrics.record_finish(choice.stats, "error", now)
        self._forget(request)

    def fail_all(self, message: str) -> list[RequestState]:
        """End all requests with an error."""
        states = list(self._requests.values())
        for state in states:
            self._end(state, "error", message)
        return states

    def process(self, core_outputs: Sequence[EngineCoreOutput]) -> ProcessedOutputs:
        now = monotonic()
        processed = ProcessedOutputs()
        changed: dict[str, RequestState] = {}
        for output in core_outputs:
            known = self._choices.get(output.request_id)
            if known is None:
                if output.finish_reason is None:
                    processed.aborts.append(output.request_id)
                continue
            request, choice = known
            if output.prompt_logprobs is not None:
                request.add_prompt_logprobs(output.prompt_logprobs)
            if not output.new_token_ids and output.finish_reason is None:
                continue
            self._add(request, choice, output, now)
            if choice.finish_reason is not None and output.finish_reason is None:
                processed.aborts.append(choice.id)
            if not request.is_final_only or (choice.finish_reason is not None and request.is_finished):
                changed[request.id] = request
        processed.changed = list(changed.values())
        return processed

    def _add(self, request: RequestState, choice: ChoiceState, output: EngineCoreOutput, now: float) -> None:
        """Hand tokens, or the end, to their choice; let go of it, and of its request, with the end."""
        if choice.finish_reason is None:  # else an interrupt kept it from leaving
            stats = choice.stats
            stats.num_cached_tokens = output.num_cached_tokens
            if output.scheduled_time:
                stats.scheduled_time = output.scheduled_time
            choice.add(output)
            if output.new_token_ids:
                request.metrics.record_tokens(stats, len(output.new_token_ids), now)
        if choice.finish_reason is not None:
            request.metrics.record_finish(choice.stats, choice.finish_reason, now)
            self._choices.pop(choice.id, None)
            if request.is_finished:
                self._requests.pop(request.id, None)

    def _end(self, request: RequestState, finish_reason: str, stop_reason: str | None) -> None:
        """End the unfinished choices of a request."""
        now = monotonic()
        for choice in request.choices:
            if choice.finish_reason is None:
                cached = choice.stats.num_cached_tokens
                ending = EngineCoreOutput(choice.id, [], finish_reason, stop_reason, num_cached_tokens=cached)
                self._add(request, choice, ending, now)
        self._forget(request)

    def _forget(self, request: RequestState) -> None:
        for choice in request.choices:
            self._choices.pop(choice.id, None)
        self._requests.pop(request.id, None)
