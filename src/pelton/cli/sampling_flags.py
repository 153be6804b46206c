"""Sampling parameters as flags."""

import argparse
from collections.abc import Collection
from typing import Any

from pelton.config.options import flag_of
from pelton.loader.text_files import parse_json
from pelton.sampling_params import MAX_LOGIT_BIASES, SamplingParams

_FLAG: dict[str, Any] = {"action": argparse.BooleanOptionalAction}

NOT_FLAGS = frozenset({"guided_decoding", "output_kind"})
"""Fields that are not for users of the command: an older name; and it chooses itself how outputs come."""


def _json_object(text: str) -> dict[str, Any]:
    try:
        return parse_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object, but {error}") from None


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must have the form TOKEN_ID=BIAS, got {text!r}") from None


SAMPLING_FLAGS: dict[str, dict[str, Any]] = {
    "n": {"type": int, "help": "outputs per prompt."},
    "presence_penalty": {"type": float, "help": "subtracted from logits of tokens in the output; -2 to 2."},
    "frequency_penalty": {"type": float, "help": "the same for each time a token is in the output; -2 to 2."},
    "repetition_penalty": {"type": float, "help": "above 1: weakens tokens that are in the prompt or the output."},
    "temperature": {"type": float, "help": "divides the logits; 0 means greedy."},
    "top_p": {"type": float, "help": "sample from this probability mass."},
    "top_k": {"type": int, "help": "sample from the k most likely tokens; 0 or -1 means all."},
    "min_p": {"type": float, "help": "leave out tokens below this share of the likeliest one's probability."},
    "seed": {"type": int, "help": "makes sampling repeatable."},
    "stop": {"action": "append", "metavar": "TEXT", "help": "string that ends the output; repeatable."},
    "stop_token_ids": {
        "type": int,
        "action": "append",
        "metavar": "ID",
        "help": "token that ends the output; repeatable.",
    },
    "include_stop_str_in_output": {**_FLAG, "help": "cut the text after the stop string or token, not before."},
    "bad_words": {"action": "append", "metavar": "TEXT", "help": "words that may not be generated; repeatable."},
    "ignore_eos": {**_FLAG, "help": "go on after the end-of-sequence token."},
    "max_tokens": {"type": int, "help": "most tokens per output; 0 processes the prompt only."},
    "min_tokens": {"type": int, "help": "no output ends before it has so many tokens."},
    "logprobs": {"type": int, "help": "log probabilities of so many likeliest tokens; -1 means all. With --jsonl."},
    "prompt_logprobs": {"type": int, "help": "the same for the tokens of the prompt. With --jsonl."},
    "logit_bias": {
        "type": _bias,
        "action": "append",
        "metavar": "TOKEN_ID=BIAS",
        "help": f"added to the logit of a token, -100 to 100; repeatable, at most {MAX_LOGIT_BIASES:,} times.",
    },
    "allowed_token_ids": {
        "type": int,
        "action": "append",
        "metavar": "ID",
        "help": "a token that may be generated, and no others; repeatable.",
    },
    "detokenize": {**_FLAG, "help": "make text of the tokens; --no-detokenize needs --jsonl."},
    "skip_special_tokens": {**_FLAG, "help": "leave special tokens out of the text."},
    "spaces_between_special_tokens": {**_FLAG, "help": "spaces between added tokens, where the vocabulary has them."},
    "truncate_prompt_tokens": {
        "type": int,
        "help": "keep so many tokens of the prompt, the last ones; -1: as many as leave room for max_tokens (for one "
        "token, if that is not given).",
    },
    "structured_outputs": {
        "type": _json_object,
        "metavar": "JSON",
        "help": "what the output must look like: an object with json, regex, choice, grammar, json_object or "
        """structural_tag, such as '{"choice": ["yes", "no"]}'.""",
    },
    "extra_args": {"type": _json_object, "metavar": "JSON", "help": "arguments of your own logits processors."},
}
"""Field of `SamplingParams` -> what argparse is told."""


def add_sampling_flags(
    parser: argparse.ArgumentParser, *, max_tokens_default: str, leave_out: Collection[str] = ()
) -> None:
    """Add a flag for every field that is not left out. What is not given has no attribute in the namespace."""
    group = parser.add_argument_group(
        "sampling",
        "What is not given is as the model's generation_config.json has it (see --generation-config), or else the "
        "default here.",
    )
    defaults = SamplingParams()
    for name, options in SAMPLING_FLAGS.items():
        if name in leave_out:
            continue
        default = max_tokens_default if name == "max_tokens" else getattr(defaults, name)
        text = options["help"] + ("" if default is None else f" Default: {default}.")
        group.add_argument(flag_of(name), **{**options, "help": text, "default": argparse.SUPPRESS})


def given_sampling(options: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters on the command line, by their names. Raises ValueError for values that are not valid."""
    given = {name: value for name, value in vars(options).items() if name in SAMPLING_FLAGS}
    if "logit_bias" in given:
        pairs = given["logit_bias"]
        given["logit_bias"] = dict(pairs)
        if len(given["logit_bias"]) < len(pairs):
            raise ValueError("logit_bias names a token twice; give each token one bias")
    # Checked before a model is loaded, as far as that can be done without its defaults.
    SamplingParams(**{"max_tokens": None, **given})
    return given
