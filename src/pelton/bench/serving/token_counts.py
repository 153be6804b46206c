"""How many tokens prompts and answers have, where the server does not say."""

from collections.abc import Sequence

from pelton.bench.requests import BenchRequest
from pelton.bench.serving.request_result import RequestResult
from pelton.tokenizer import Tokenizer


def fill_token_counts(
    results: Sequence[RequestResult], requests: Sequence[BenchRequest], tokenizer: Tokenizer | None
) -> str:
    """Count the tokens of answers that came without usage, and of prompts whose number is not known, where possible.

    A prompt without usage has the dataset's count, or that of the tokenizer: of a conversation as the model's chat
    template writes it. Without either its `prompt_len` stays 0.

    Returns what all counts of answers are from: `usage`, `tokenizer` (of the text) or `events` (those with text; there
    is no tokenizer), or `usage and tokenizer` and so on.
    """
    for result, request in zip(results, requests, strict=True):
        result.prompt_len = result.prompt_len or request.prompt_len or 0
        if tokenizer is not None and result.success and not result.prompt_len:
            result.prompt_len = _prompt_len(request, tokenizer)
    missing = [result for result in results if _is_missing(result)]
    if not missing:
        return "usage"
    for result in missing:
        if tokenizer is None:
            result.output_len = len(result.itls) + 1
        else:
            result.output_len = len(tokenizer.encode(result.text, add_special_tokens=False))
    counted_by = "events" if tokenizer is None else "tokenizer"
    return counted_by if len(missing) == sum(result.success for result in results) else f"usage and {counted_by}"


def _is_missing(result: RequestResult) -> bool:
    return result.success and not result.output_len and bool(result.text or result.itls)


def _prompt_len(request: BenchRequest, tokenizer: Tokenizer) -> int:
    if isinstance(request.prompt, str):
        return len(tokenizer.encode(request.prompt))
    if request.messages is None:
        return 0
    try:
        text = tokenizer.apply_chat_template(list(request.messages), tokenize=False, add_generation_prompt=True)
    except ValueError:
        return 0  # it has no template, or one that takes no such conversation
    return len(tokenizer.encode(text, add_special_tokens=False))
