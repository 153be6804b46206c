"""`LLM`: offline generation in this process."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import msgspec
from tqdm import tqdm

from pelton.config import EngineArgs, ModelConfig
from pelton.core.outputs import RequestOutput
from pelton.engine.input_processor import Prompt
from pelton.engine.llm_engine import LLMEngine
from pelton.sampling_params import RequestOutputKind, SamplingParams
from pelton.tokenizer import Tokenizer


class LLM:
    """A model and an engine for it: hand over any number of prompts, get all outputs.

    `model` is an alias, a GGUF file or a folder; the other arguments are those of `pelton.config.EngineArgs`.
    Raises ValueError for arguments that are unknown, contradictory or do not fit the model.
    """

    def __init__(self, model: str = ModelConfig.model, **engine_args: Any) -> None:
        self.llm_engine = LLMEngine.from_engine_args(EngineArgs.create(model=model, **engine_args))
        self._lock = Lock()
        """Threads take turns: the engine does not know of them."""

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts, all at once, and return one output each, in their order.

        A prompt is text, a list of token ids, or a dict with `prompt` or `prompt_token_ids` and optionally a
        `cache_salt`. `sampling_params` is one for all, or one per prompt. `priority` is one per prompt, lower
        is more urgent, for the priority policy.

        Raises ValueError for the first request that is not acceptable; then none of them runs. A request that
        fails while it runs ends with `finish_reason` "error" and the message as `stop_reason`.
        """
        prompts = as_prompt_list(prompts)
        params = _one_per_prompt(
            "sampling_params", SamplingParams() if sampling_params is None else sampling_params, len(prompts)
        )
        priorities = _one_per_prompt("priority", 0 if priority is None else priority, len(prompts))
        # Ids first: an interrupt at any point then finds every request that may have been queued.
        request_ids = [self.llm_engine.next_request_id() for _ in prompts]
        with self._lock:
            try:
                for index, request in enumerate(zip(request_ids, prompts, params, priorities, strict=True)):
                    self._add_request(*request, name=f"prompt {index}: " if len(prompts) > 1 else "")
                outputs = self._run(len(prompts), use_tqdm)
            except BaseException:
                # A refused request or an interrupt: nothing may be left running in an engine that goes on living.
                self.llm_engine.abort_requests(request_ids)
                raise
        return [outputs[request_id] for request_id in request_ids]

    def _add_request(self, request_id: str, prompt: Prompt, params: Any, priority: Any, *, name: str) -> None:
        if isinstance(params, SamplingParams):
            # Intermediate outputs would only cost time here.
            params = msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
        try:
            self.llm_engine.add_request(prompt, params, request_id=request_id, priority=priority)
        except ValueError as error:
            raise ValueError(f"{name}{error}") from None

    def get_tokenizer(self) -> Tokenizer:
        return self.llm_engine.tokenizer

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        self.llm_engine.reset_prefix_cache()

    def shutdown(self) -> None:
        """Release the model and the KV cache's memory now, whoever still refers to this object. It cannot be used
        afterwards."""
        self.llm_engine.shutdown()

    def _run(self, num_requests: int, use_tqdm: bool) -> dict[str, RequestOutput]:
        if not use_tqdm:
            # Not even a disabled bar: its global lock stays taken if an interrupt falls into it.
            return self._collect(lambda output: None)
        num_input_tokens = num_output_tokens = 0
        with tqdm(total=num_requests, desc="Processed prompts", dynamic_ncols=True) as bar:

            def show(output: RequestOutput) -> None:
                nonlocal num_input_tokens, num_output_tokens
                num_input_tokens += len(output.prompt_token_ids)
                num_output_tokens += len(output.outputs[0].token_ids)
                seconds = max(bar.format_dict["elapsed"], 1e-9)
                bar.set_postfix_str(
                    f"input {num_input_tokens / seconds:.1f} tokens/s, "
                    f"output {num_output_tokens / seconds:.1f} tokens/s",
                    refresh=False,
                )
                bar.update()

            return self._collect(show)

    def _collect(self, show: Callable[[RequestOutput], None]) -> dict[str, RequestOutput]:
        """Run until no request is left. Returns final outputs by request id."""
        outputs: dict[str, RequestOutput] = {}
        while self.llm_engine.num_unfinished_requests:
            for output in self.llm_engine.step():
                outputs[output.request_id] = output
                show(output)
        return outputs


def as_prompt_list(prompts: Any) -> list[Prompt]:
    """One prompt, or a sequence of them, as a list. A list of integers is one prompt."""
    if isinstance(prompts, str | dict):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray | memoryview):
        raise ValueError(f"prompts must be a prompt or a sequence of prompts, got {type(prompts).__name__}")
    if prompts and all(isinstance(item, int) for item in prompts):
        return [list(prompts)]
    return list(prompts)


def _one_per_prompt(name: str, given: Any, num_prompts: int) -> list[Any]:
    if not isinstance(given, Sequence):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise ValueError(f"{len(given)} {name} for {num_prompts} prompts; give one, or one per prompt")
    return list(given)
