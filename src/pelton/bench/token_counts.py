"""How many tokens answers have, where the server does not say."""

from collections.abc import Sequence

from pelton.bench.requests import BenchRequest
from pelton.bench.results import RequestResult
from pelton.tokenizer import Tokenizer


def fill_token_counts(
    results: Sequence[RequestResult], requests: Sequence[BenchRequest], tokenizer: Tokenizer | None
) -> str:
    """Count the tokens of answers that came without usage, and of prompts whose number is not known, where possible.

    Returns what all counts are from: `usage`, `tokenizer` (of the text) or `events` (those with text; there is no
    tokenizer), or `usage and tokenizer` and so on.
    """
    for result, request in zip(results, requests, strict=True):
        result.prompt_len = result.prompt_len or request.prompt_len or 0
    missing = [(result, request) for result, request in zip(results, requests, strict=True) if _is_missing(result)]
    if not missing:
        return "usage"
    for result, request in missing:
        if tokenizer is None:
            result.output_len = len(result.itls) + 1
        else:
            result.output_len = len(tokenizer.encode(result.text, add_special_tokens=False))
            if not result.prompt_len and isinstance(request.prompt, str):
                result.prompt_len = len(tokenizer.encode(request.prompt))
    counted_by = "events" if tokenizer is None else "tokenizer"
    return counted_by if len(missing) == sum(result.success for result in results) else f"usage and {counted_by}"


def _is_missing(result: RequestResult) -> bool:
    return result.success and not result.output_len and bool(result.text or result.itls)
