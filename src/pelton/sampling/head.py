"""The head program of a model, from hidden states to sampled tokens and their log probabilities, and its scorer."""

from typing import Protocol

from pelton.config import DecoderConfig, SamplingConfig
from pelton.ops import C1, B, C, L, LogitsHook, M, P, Program, Recorder, T, Value, mask_words


class LogitsModel(Protocol):
    """The part of a model that the head needs."""

    config: DecoderConfig
    activation_dtype: str
    """Of the hidden states."""

    def head(self, op: Recorder, rows: Value, is_wanted: Value) -> tuple[Value, Value]: ...


def record_head(model: LogitsModel, sampling: SamplingConfig, hook: LogitsHook | None = None) -> Program:
    """Record a loaded model's head and all of sampling.

    Inputs: hidden [T, hidden_size] in the model's activation dtype and logits_rows [L] int32, the tokens whose logits
    are needed; is_wanted [L] int32, 0 for rows of which only the most likely token is needed; edit_index [L] int32,
    which of C edits a row's logits get, or -1; what `edit_logits` takes for these edits (`_record_edits`); per row
    warpers [L, 4] float32, seed [L] uint64, choice, position and num_logprobs [L] int32. Outputs: token_ids,
    sampled_logprob and rank [L]; top_ids and top_logprobs [L, max_logprobs].

    `sampling` says what log probabilities are, and how many there are at most. The hook sees the edited rows only. The
    program may run in tiles of L: the edits are then whole in each, and edit_index counts among all of them.
    """
    op = Recorder("head")
    hidden = op.input("hidden", (T, model.config.hidden_size), model.activation_dtype)
    logits_rows, is_wanted, edit_index = (
        op.input(name, (L,), "int32") for name in ("logits_rows", "is_wanted", "edit_index")
    )
    warpers = op.input("warpers", (L, 4))
    seed = op.input("seed", (L,), "uint64")
    choice, position, num_logprobs = (op.input(name, (L,), "int32") for name in ("choice", "position", "num_logprobs"))

    # 1. Logits.
    logits, best_ids = model.head(op, op.gather_rows(hidden, logits_rows), is_wanted)

    # 2. What is edited: by the user's own processors; then masks, biases and penalties.
    processed = logits if hook is None else op.process_logits(logits, edit_index, hook)
    edited = _record_edits(op, processed, edit_index, model.config.vocab_size)

    # 3. Top-k, temperature, min-p, top-p, and the draw.
    token_ids = op.sample(logits, best_ids, edited, edit_index, warpers, seed, choice, position)

    # 4. Log probabilities.
    judged = logits
    if sampling.reports_processed:
        judged = op.warp_logits(logits, edited, edit_index, warpers, num_logprobs)
    scores = _record_logprobs(op, judged, token_ids, num_logprobs, sampling, model.config.vocab_size)
    return op.finish({"token_ids": token_ids} | scores)


def record_scorer(model: LogitsModel, sampling: SamplingConfig) -> Program:
    """Record the log probabilities of given tokens: those of a prompt.

    Inputs: hidden [T, hidden_size] in the model's activation dtype; logits_rows, is_wanted (all 1), token_ids and
    num_logprobs [L] int32: row l says how likely token_ids[l] is after token logits_rows[l] of the step. Outputs:
    sampled_logprob and rank [L]; top_ids and top_logprobs [L, max_logprobs]: always of the model's own logits, for
    nothing is sampled here.
    """
    op = Recorder("scorer")
    hidden = op.input("hidden", (T, model.config.hidden_size), model.activation_dtype)
    logits_rows, is_wanted, token_ids, num_logprobs = (
        op.input(name, (L,), "int32") for name in ("logits_rows", "is_wanted", "token_ids", "num_logprobs")
    )
    logits, _ = model.head(op, op.gather_rows(hidden, logits_rows), is_wanted)
    return op.finish(_record_logprobs(op, logits, token_ids, num_logprobs, sampling, model.config.vocab_size))


def _record_edits(op: Recorder, logits: Value, edit_index: Value, vocab_size: int) -> Value:
    """Inputs: mask_index [C] int32, masks [M, ceil(V / 32)] uint32; bias_start [C + 1] and bias_ids [B] int32, bias [B]
    float32; penalty_start [C + 1], penalty_ids and penalty_counts [P] int32, penalties [C, 3] float32.
    """
    mask_index = op.input("mask_index", (C,), "int32")
    masks = op.input("masks", (M, mask_words(vocab_size)), "uint32")
    bias_start = op.input("bias_start", (C1,), "int32")
    bias_ids = op.input("bias_ids", (B,), "int32")
    bias = op.input("bias", (B,))
    penalty_start = op.input("penalty_start", (C1,), "int32")
    penalty_ids = op.input("penalty_ids", (P,), "int32")
    penalty_counts = op.input("penalty_counts", (P,), "int32")
    penalties = op.input("penalties", (C, 3))
    biased, penalized = (bias_start, bias_ids, bias), (penalty_start, penalty_ids, penalty_counts, penalties)
    return op.edit_logits(logits, edit_index, mask_index, masks, *biased, *penalized)


def _record_logprobs(
    op: Recorder, logits: Value, token_ids: Value, num_logprobs: Value, sampling: SamplingConfig, vocab_size: int
) -> dict[str, Value]:
    """The outputs that are about log probabilities."""
    max_logprobs = sampling.most_logprobs(vocab_size)
    scores = op.logprobs(logits, token_ids, num_logprobs, max_logprobs, normalize=not sampling.reports_logits)
    return dict(zip(("sampled_logprob", "rank", "top_ids", "top_logprobs"), scores, strict=True))
