"""The head program of a model: from hidden states to sampled tokens and their log probabilities."""

from typing import Protocol

from pelton.config import DecoderConfig
from pelton.ops import L, Program, Recorder, T, Value


class LogitsModel(Protocol):
    """The part of a model that the head needs."""

    config: DecoderConfig

    def head(self, op: Recorder, rows: Value) -> Value: ...


def record_head(model: LogitsModel, max_logprobs: int) -> Program:
    """Record a loaded model's head and the sampler.

    Inputs: hidden [T, E] float32 and logits_rows [L] int32, the tokens whose logits are needed; per row
    temperature and top_p [L] float32, top_k, choice, position and num_logprobs [L] int32, seed [L] uint64.
    Outputs: token_ids, sampled_logprob and rank [L]; top_ids and top_logprobs [L, max_logprobs].
    """
    op = Recorder("head")
    hidden = op.input("hidden", (T, model.config.hidden_size))
    logits_rows = op.input("logits_rows", (L,), "int32")
    temperature = op.input("temperature", (L,))
    top_k = op.input("top_k", (L,), "int32")
    top_p = op.input("top_p", (L,))
    seed = op.input("seed", (L,), "uint64")
    choice = op.input("choice", (L,), "int32")
    position = op.input("position", (L,), "int32")
    num_logprobs = op.input("num_logprobs", (L,), "int32")

    logits = model.head(op, op.gather_rows(hidden, logits_rows))
    token_ids = op.sample(logits, temperature, top_k, top_p, seed, choice, position)
    sampled_logprob, rank, top_ids, top_logprobs = op.logprobs(logits, token_ids, num_logprobs, max_logprobs)
    return op.finish(
        {
            "token_ids": token_ids,
            "sampled_logprob": sampled_logprob,
            "rank": rank,
            "top_ids": top_ids,
            "top_logprobs": top_logprobs,
        }
    )
