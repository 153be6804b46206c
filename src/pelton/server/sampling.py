"""From the fields of a request to `SamplingParams`."""

from collections.abc import Mapping
from typing import Any

from pelton.sampling_params import SEED_LIMIT, RequestOutputKind, SamplingParams
from pelton.server.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest

COMPLETION_MAX_TOKENS = 16
"""Of completions where neither the request nor the model says anything, as in OpenAI's interface."""

_SAME_NAMES = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "bad_words",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "prompt_logprobs",
    "allowed_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
)


def completion_params(request: CompletionRequest, defaults: Mapping[str, float | int]) -> SamplingParams:
    """`defaults`: what the model recommends. Raises ValueError that names the field."""
    given = _given(request)
    if request.logprobs is not None:
        given["logprobs"] = request.logprobs
        if request.echo:
            # The engine computes what both ask for; the answer has of each what was asked.
            wanted = (given.get("prompt_logprobs", request.logprobs), request.logprobs)
            given["prompt_logprobs"] = -1 if -1 in wanted else max(wanted)
    return SamplingParams(**{"max_tokens": COMPLETION_MAX_TOKENS, **defaults, **given})


def chat_params(request: ChatCompletionRequest, defaults: Mapping[str, float | int]) -> SamplingParams:
    """`defaults`: what the model recommends. Raises ValueError that names the field."""
    given = _given(request)
    if request.max_completion_tokens is not None:
        given["max_tokens"] = request.max_completion_tokens
    if request.logprobs:
        given["logprobs"] = request.top_logprobs or 0
    return SamplingParams(**{"max_tokens": None, **defaults, **given})


def _given(request: GenerationRequest) -> dict[str, Any]:
    """What the request sets."""
    given = {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}
    if request.stream:
        given.pop("prompt_logprobs", None)
    if request.seed is not None:
        # Clients draw signed seeds; -1 means none, here as in vLLM.
        given["seed"] = request.seed % SEED_LIMIT if request.seed < -1 else request.seed
    if request.logit_bias:
        given["logit_bias"] = {int(token_id): bias for token_id, bias in request.logit_bias.items()}
    if request.constraint is not None:
        given["structured_outputs"] = request.constraint.params
    if request.vllm_xargs:
        given["extra_args"] = request.vllm_xargs
    given["output_kind"] = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return given
