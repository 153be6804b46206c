"""A conversation with a model: its messages so far, and the next answer."""

from collections.abc import Callable

import msgspec

from pelton.cli.chat_template_flag import render_messages
from pelton.core.outputs import RequestOutput
from pelton.engine.input_processor import TokensPrompt
from pelton.engine.llm_engine import LLMEngine
from pelton.sampling_params import RequestOutputKind, SamplingParams

Message = dict[str, str]


class Conversation:
    """Keeps the messages, asks the engine for answers. Raises ValueError where the chat template refuses `system`."""

    def __init__(
        self, engine: LLMEngine, params: SamplingParams, *, system: str | None, chat_template: str | None
    ) -> None:
        self._engine = engine
        self._params = msgspec.structs.replace(params, output_kind=RequestOutputKind.DELTA)
        self._chat_template = chat_template
        self._opening: list[Message] = []
        self.messages: list[Message] = []
        self.restart(system)

    def restart(self, system: str | None) -> None:
        """Forget the messages, and begin with this system message, or with none.

        Raises ValueError, with nothing forgotten, if the model has no chat template or its template refuses that.
        """
        opening = [] if system is None else [{"role": "system", "content": system}]
        self._render([*opening, {"role": "user", "content": "?"}])
        self._opening = opening
        self.reset()

    def reset(self) -> None:
        """Forget the messages, but not the system message."""
        self.messages = list(self._opening)

    def ask(self, text: str, on_output: Callable[[RequestOutput], None], is_stopped: Callable[[], bool]) -> None:
        """Add a message and its answer, which `on_output` gets piece by piece.

        Between two steps, `is_stopped` may end the answer; what there is of it stays. A message that gets no word of an
        answer, because it is refused, stopped or interrupted or because the request fails, is taken back. Raises
        ValueError, and lets exceptions of `on_output` through.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self._render(messages)
        request_id = self._engine.next_request_id()
        answer: list[str] = []
        ended = False

        def take(output: RequestOutput) -> None:
            nonlocal ended
            for completion in output.outputs:
                answer.append(completion.text)
                ended = ended or completion.finish_reason in ("stop", "length")
            on_output(output)

        try:
            self._engine.add_request(prompt, self._params, request_id=request_id)
            while self._engine.num_unfinished_requests and not is_stopped():
                for output in self._engine.step():
                    take(output)
            for output in self._engine.abort_requests([request_id]):
                take(output)
        finally:
            self._engine.abort_requests([request_id])
            if ended or any(answer):
                self.messages = [*messages, {"role": "assistant", "content": "".join(answer)}]

    def _render(self, messages: list[Message]) -> TokensPrompt:
        return render_messages(self._engine.tokenizer, messages, self._chat_template)
