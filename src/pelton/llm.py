"""`LLM`: offline generation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Any

import msgspec

from pelton.checks import check_flag, check_integer
from pelton.config import EngineArgs, ModelConfig
from pelton.core.metrics import Metric
from pelton.core.outputs import RequestOutput
from pelton.engine.beam_search import BeamSearch, BeamSearchOutput, next_token_params, own_params
from pelton.engine.chat import as_conversation_list, render_chat
from pelton.engine.input_processor import Prompt, TokensPrompt
from pelton.engine.llm_engine import LLMEngine
from pelton.error_text import shown
from pelton.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from pelton.tokenizer import Tokenizer

UseTqdm = bool | Callable[..., Any]
"""Whether to show progress on standard error, or what makes the bar, called like `tqdm`."""

_Request = tuple[Prompt, Any, Any]
"""Prompt, sampling parameters, priority; unchecked."""


class LLM:
    """A model and an engine for it: hand over any number of prompts, get all outputs.

    `model` is an alias, a GGUF file or a folder; the other arguments are those of `pelton.config.EngineArgs`.
    `core_in_process` gives the engine core a process of its own, as `pelton serve` does: it computes while this process
    handles outputs, and is started again if it ends. Call `shutdown` then to end it before this process ends.
    Raises ValueError for arguments that are unknown, contradictory or do not fit the model.
    """

    def __init__(self, model: str = ModelConfig.model, *, core_in_process: bool = False, **engine_args: Any) -> None:
        check_flag("core_in_process", core_in_process)
        self._args = EngineArgs.create(model=model, **engine_args)
        self.llm_engine = LLMEngine.from_engine_args(self._args, core_in_process=core_in_process)
        self._lock = RLock()
        """Threads take turns: the engine does not know of them. A signal handler may shut down at any time."""

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts, all at once, and return one output each, in their order.

        A prompt is text, a list of token ids, or a dict with `prompt` or `prompt_token_ids` and optionally a
        `cache_salt`. `sampling_params` is one for all, or one per prompt; without, the model's defaults count.
        `priority` is one per prompt, lower is more urgent, for the priority policy.

        Raises ValueError for the first request that is not acceptable; then none of them runs. A request that
        fails while it runs ends with `finish_reason` "error" and the message as `stop_reason`.
        """
        return self._generate("prompt", as_prompt_list(prompts), sampling_params, priority, use_tqdm)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations, all at once: `generate` with the prompts that the chat template makes of them.

        `messages` is a conversation, which is a list of messages, or a list of conversations. What a message is, and
        the other arguments, are told at `pelton.engine.chat.render_chat`.

        Raises ValueError as `generate` does, and for conversations that the template refuses.
        """
        conversations = as_conversation_list(messages)
        prompts: list[Prompt] = []
        for index, conversation in enumerate(conversations):
            with _named("conversation", index, len(conversations)):
                prompt = render_chat(
                    self.get_tokenizer(),
                    conversation,
                    chat_template=chat_template,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tools=tools,
                    chat_template_kwargs=chat_template_kwargs,
                )
            prompts.append(prompt)
        return self._generate("conversation", prompts, sampling_params, None, use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Search the most likely completions of each prompt, by beam search; prompts are those of `generate`.

        `concurrency_limit` is how many prompts are searched at a time, by default all. `BeamSearch` tells how the
        search goes and what scores are. It asks the engine for the log probabilities of `2 * beam_width` tokens.

        Raises ValueError as `generate` does. A search in which a request fails ends: its unfinished sequences come
        first, with `finish_reason` "error" and the message as `stop_reason`.
        """
        engine = self.llm_engine
        engine.check_is_up()
        prompts, params = as_prompt_list(prompts), own_params(params)
        _check_use_tqdm(use_tqdm)
        request_params = next_token_params(params, self._args.sampling, engine.vocab_size, engine.max_model_len)
        if concurrency_limit is not None:
            check_integer("concurrency_limit", concurrency_limit, low=1)
        num_at_once = max(1, len(prompts)) if concurrency_limit is None else concurrency_limit
        if num_at_once < len(prompts):
            self._check_requests([(prompt, request_params, 0) for prompt in prompts])
        searches: list[BeamSearch] = []
        with _progress("Beam search", len(prompts), use_tqdm) as bar:
            for start in range(0, len(prompts), num_at_once):
                searches += self._search_beams(prompts[start : start + num_at_once], params, request_params, bar)
        return [search.result(engine.tokenizer) for search in searches]

    def get_tokenizer(self) -> Tokenizer:
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What counts for requests without parameters: what the model's generation_config.json says, and
        `SamplingParams`' defaults. The copy is the caller's."""
        return self.llm_engine.default_sampling_params()

    def get_metrics(self) -> list[Metric]:
        """The engine's figures since its start, under Prometheus names."""
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix, once no other thread's call is running. Returns whether that was done."""
        with self._lock:
            return self.llm_engine.reset_prefix_cache()

    def shutdown(self) -> None:
        """Release the model and the KV cache's memory, once no other thread's call is running, whoever still refers to
        this object. It cannot be used afterwards; a second call does nothing."""
        with self._lock:
            self.llm_engine.shutdown()

    def _generate(
        self, what: str, prompts: list[Prompt], sampling_params: Any, priority: Any, use_tqdm: UseTqdm
    ) -> list[RequestOutput]:
        """`what` a prompt is called in messages."""
        _check_use_tqdm(use_tqdm)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = _one_per_prompt("sampling_params", sampling_params, len(prompts), what)
        priorities = _one_per_prompt("priority", 0 if priority is None else priority, len(prompts), what)
        return self._complete(list(zip(prompts, params, priorities, strict=True)), what, use_tqdm)

    def _search_beams(
        self, prompts: Sequence[Prompt], params: BeamSearchParams, request_params: SamplingParams, bar: Any
    ) -> list[BeamSearch]:
        """Run the searches of these prompts to their ends, each step a request for every live sequence."""
        engine = self.llm_engine
        outputs = self._complete([(prompt, request_params, 0) for prompt in prompts])
        # The engine made tokens of the prompts.
        searches = [
            BeamSearch(output.prompt_token_ids, params, engine.eos_token_ids, engine.max_model_len)
            for output in outputs
        ]
        while any(search.live for search in searches):
            upcoming = iter(outputs)
            for search in searches:
                if search.live:
                    _extend(search, [next(upcoming) for _ in search.live])
                    if bar is not None and not search.live:
                        bar.update()
            outputs = self._complete(
                [
                    (_with_tokens(prompt, sequence.tokens), request_params, 0)
                    for prompt, search in zip(prompts, searches, strict=True)
                    for sequence in search.live
                ]
            )
        return searches

    def _check_requests(self, requests: Sequence[_Request]) -> None:
        """Raise ValueError for the first request that is not acceptable."""
        request_ids = [self.llm_engine.next_request_id() for _ in requests]
        with self._lock:
            self.llm_engine.check_is_up()
            try:
                self._add_requests(request_ids, requests, "prompt")
            finally:
                self.llm_engine.withdraw_requests(request_ids)

    def _complete(
        self, requests: Sequence[_Request], what: str = "prompt", use_tqdm: UseTqdm = False
    ) -> list[RequestOutput]:
        """Run requests to their ends. Raises ValueError for the first that is not acceptable; then none of them runs.

        `what` is what messages call a prompt.
        """
        # Ids first: an interrupt at any point then finds every request that may have been queued.
        request_ids = [self.llm_engine.next_request_id() for _ in requests]
        with self._lock:
            self.llm_engine.check_is_up()
            try:
                try:
                    self._add_requests(request_ids, requests, what)
                    outputs = self._run(len(requests), use_tqdm)
                except BaseException:
                    # An interrupt: nothing may be left running in an engine that goes on living.
                    self.llm_engine.abort_requests(request_ids)
                    raise
            except BaseException:
                # Another interrupt may have come in the midst of that.
                self.llm_engine.abort_requests(request_ids)
                raise
        try:
            return [outputs[request_id] for request_id in request_ids]
        except KeyError:
            raise RuntimeError(
                "this LLM was called again, by a callback or signal handler, before the call had ended, and the later "
                "call has taken its outputs"
            ) from None

    def _add_requests(self, request_ids: Sequence[str], requests: Sequence[_Request], what: str) -> None:
        """Add all of them, or none: raises ValueError for the first that is not acceptable."""
        try:
            for index, (request_id, (prompt, params, priority)) in enumerate(zip(request_ids, requests, strict=True)):
                if isinstance(params, SamplingParams):
                    # Intermediate outputs would only cost time here.
                    params = msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
                with _named(what, index, len(requests)):
                    self.llm_engine.add_request(prompt, params, request_id=request_id, priority=priority)
        except ValueError:
            self.llm_engine.withdraw_requests(request_ids)
            raise

    def _run(self, num_requests: int, use_tqdm: UseTqdm) -> dict[str, RequestOutput]:
        """Run until no request is left. Returns final outputs by request id."""
        outputs: dict[str, RequestOutput] = {}
        num_input_tokens = num_output_tokens = 0
        with _progress("Processed prompts", num_requests, use_tqdm) as bar:
            while self.llm_engine.num_unfinished_requests:
                for output in self.llm_engine.step():
                    outputs[output.request_id] = output
                    if bar is None:
                        continue
                    num_input_tokens += len(output.prompt_token_ids)
                    num_output_tokens += sum(len(choice.token_ids) for choice in output.outputs)
                    seconds = max(bar.format_dict["elapsed"], 1e-9)
                    bar.set_postfix_str(
                        f"input {num_input_tokens / seconds:.1f} tokens/s, "
                        f"output {num_output_tokens / seconds:.1f} tokens/s",
                        refresh=False,
                    )
                    bar.update()
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


def _one_per_prompt(name: str, given: Any, num_prompts: int, what: str) -> list[Any]:
    if not isinstance(given, Sequence):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise ValueError(f"{len(given)} {name} for {num_prompts} {what}s; give one, or one per {what}")
    return list(given)


@contextmanager
def _named(what: str, index: int, number: int) -> Iterator[None]:
    """Put which one it is, if there are several, before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what} {index}: {error}" if number > 1 else str(error)) from None


def _check_use_tqdm(use_tqdm: Any) -> None:
    if not isinstance(use_tqdm, bool) and not callable(use_tqdm):
        raise ValueError(f"use_tqdm must be True, False, or what makes a bar as tqdm does, got {shown(use_tqdm)}")


def _progress(title: str, total: int, use_tqdm: UseTqdm) -> AbstractContextManager[Any]:
    """A bar to be updated, or None: not even a disabled one, whose global lock stays taken if an interrupt falls into
    it."""
    if use_tqdm is False:
        return nullcontext()
    make_bar = _tqdm() if isinstance(use_tqdm, bool) else use_tqdm
    bar: AbstractContextManager[Any] = make_bar(total=total, desc=title, dynamic_ncols=True)
    return bar


def _tqdm() -> Callable[..., Any]:
    """Loaded for the first bar."""
    from tqdm import tqdm

    make_bar: Callable[..., Any] = tqdm
    return make_bar


def _extend(search: BeamSearch, outputs: Sequence[RequestOutput]) -> None:
    """Take the outputs of requests for the next token of a search's live sequences."""
    logprobs = []
    for output in outputs:
        completion = output.outputs[0]
        if completion.finish_reason == "error":
            search.fail(str(completion.stop_reason))
            return
        assert completion.logprobs is not None
        logprobs.append(completion.logprobs[0])
    search.advance(logprobs)


def _with_tokens(prompt: Prompt, token_ids: list[int]) -> TokensPrompt:
    """A prompt of these tokens, with the cache salt of another."""
    changed: TokensPrompt = {"prompt_token_ids": token_ids}
    if isinstance(prompt, Mapping) and prompt.get("cache_salt") is not None:
        changed["cache_salt"] = prompt["cache_salt"]
    return changed
