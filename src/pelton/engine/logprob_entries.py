"""Log probabilities as users read them."""

from collections.abc import Iterable

from pelton.core.messages import TokenLogprobs
from pelton.core.outputs import Logprob
from pelton.tokenizer import Tokenizer


def logprob_entries(positions: Iterable[TokenLogprobs], tokenizer: Tokenizer | None) -> list[dict[int, Logprob]]:
    """One dict per position, the sampled (or prompt) token first. Without a tokenizer, tokens have no text."""
    listed = []
    for position in positions:
        ranks = (position.rank, *range(1, len(position.token_ids)))
        entries: dict[int, Logprob] = {}
        for token_id, logprob, rank in zip(position.token_ids, position.logprobs, ranks, strict=True):
            if token_id not in entries:
                text = None if tokenizer is None else tokenizer.token_text(token_id)
                entries[token_id] = Logprob(logprob, rank, text)
        listed.append(entries)
    return listed
