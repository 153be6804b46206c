"""Which requests a benchmark sends, and its flags."""

import argparse
from dataclasses import dataclass, fields
from typing import Any

from pelton.checks import check_choice, check_flag, check_integer, finite_float
from pelton.config.options import add_flags, flag_of, given_flags, option
from pelton.error_text import shown

DATASETS = ("random", "prefix_repetition", "sharegpt", "custom", "builtin")
OWN_OUTPUT_LEN = -1
"""As `custom_output_len`: each line says itself."""

_OF_FILES = ("sharegpt", "custom")
_OF_TOKENS = ("random", "prefix_repetition", "sharegpt")
"""Datasets whose prompts are made of token ids, or chosen by their number."""
_OUTPUT_LENS = {name: f"{name}_output_len" for name in DATASETS}


@dataclass(frozen=True)
class DatasetConfig:
    """A dataset, and how much of it. Fields that begin with a dataset's name are for that one only."""

    dataset_name: str = option(
        "random",
        "random: random tokens; prefix_repetition: random tokens, many prompts to a common beginning; sharegpt: "
        "a JSON file of recorded conversations; custom: a file of JSON lines, objects with prompt (text) or messages, "
        "and optionally output_tokens; builtin: prompts of many kinds that come with Pelton.",
        choices=DATASETS,
    )
    dataset_path: str | None = option(None, "File of the datasets sharegpt and custom.", type=str, metavar="FILE")
    num_prompts: int = option(1000, "Requests in all.")
    seed: int = option(0, "What is random about the dataset depends on it: tokens, lengths, and the order of a file.")
    no_oversample: bool = option(
        False,
        "Refuse a dataset of fewer requests than num_prompts, instead of repeating them.",
        action="store_true",
    )
    random_input_len: int = option(1024, "Tokens per prompt, without the common beginning.")
    random_output_len: int = option(128, "Tokens per answer.")
    random_range_ratio: float = option(
        0.0, "Draw both lengths evenly from [length * (1 - ratio), length * (1 + ratio)]; at least 0, below 1."
    )
    random_prefix_len: int = option(0, "Tokens that all prompts begin with, besides their own.")
    prefix_repetition_prefix_len: int = option(256, "Tokens of each common beginning.")
    prefix_repetition_suffix_len: int = option(256, "Tokens of each prompt's own after that.")
    prefix_repetition_num_prefixes: int = option(10, "Common beginnings, among which the prompts are shared out.")
    prefix_repetition_output_len: int = option(128, "Tokens per answer.")
    sharegpt_output_len: int | None = option(
        None, "Tokens per answer. Default: as many as the recorded answer has.", type=int
    )
    custom_output_len: int = option(256, "Tokens per answer; -1 takes output_tokens of each line.")
    builtin_output_len: int = option(128, "Tokens per answer.")

    def __post_init__(self) -> None:
        check_choice("dataset_name", self.dataset_name, DATASETS)
        self._check_path()
        check_flag("no_oversample", self.no_oversample)
        for name, low in _LOWEST.items():
            check_integer(name, getattr(self, name), low=low)
        if self.sharegpt_output_len is not None:
            check_integer("sharegpt_output_len", self.sharegpt_output_len, low=1)
        if self.custom_output_len != OWN_OUTPUT_LEN:
            check_integer("custom_output_len", self.custom_output_len, low=1)
        if not 0.0 <= finite_float("random_range_ratio", self.random_range_ratio) < 1.0:
            raise ValueError(f"random_range_ratio must be at least 0 and below 1, got {self.random_range_ratio}")
        if self.dataset_name == "prefix_repetition" and self.prefix_repetition_num_prefixes > self.num_prompts:
            raise ValueError(
                f"prefix_repetition_num_prefixes is {self.prefix_repetition_num_prefixes}, but num_prompts is "
                f"{self.num_prompts}, so that some beginnings would have no prompt; lower the first, or raise the other"
            )

    def _check_path(self) -> None:
        path, name = self.dataset_path, self.dataset_name
        if path is None and name in _OF_FILES:
            raise ValueError(f"dataset_name is {name}, but there is no file; name one with --dataset-path FILE")
        if path is not None and name not in _OF_FILES:
            raise ValueError(
                f"dataset_path is {shown(path)}, but dataset {name} reads no file; leave it out, or set dataset_name "
                f"to {' or '.join(_OF_FILES)}"
            )
        if path is not None and (not isinstance(path, str) or not path or "\0" in path):
            raise ValueError(f"dataset_path must be the name of a file, got {shown(path)}")


_LOWEST = {
    "num_prompts": 1,
    "seed": 0,
    "random_input_len": 1,
    "random_output_len": 1,
    "random_prefix_len": 0,
    "prefix_repetition_prefix_len": 1,
    "prefix_repetition_suffix_len": 1,
    "prefix_repetition_num_prefixes": 1,
    "prefix_repetition_output_len": 1,
    "builtin_output_len": 1,
}
"""Lowest values of the fields that are integers and have no value that means something else."""


def needs_tokenizer(config: DatasetConfig) -> bool:
    """Whether `make_requests` needs the tokenizer of the model that is asked."""
    return config.dataset_name in _OF_TOKENS


def add_dataset_flags(group: "argparse._ActionsContainer") -> None:
    """Add the fields of `DatasetConfig`, and --input-len and --output-len, which set those of the chosen dataset."""
    add_flags(group, fields(DatasetConfig))
    group.add_argument(
        "--input-len", type=int, default=argparse.SUPPRESS, help="the same as --random-input-len (dataset random)"
    )
    group.add_argument(
        "--output-len", type=int, default=argparse.SUPPRESS, help="tokens per answer, of whichever dataset is chosen"
    )


def dataset_from_flags(namespace: argparse.Namespace) -> DatasetConfig:
    """Raises ValueError for values that are not valid, and for flags of another dataset than the one that is chosen."""
    given = given_flags(namespace, fields(DatasetConfig))
    chosen = given.get("dataset_name", "random")
    for name in given:
        owner = next((dataset for dataset in DATASETS if name.startswith(dataset + "_")), chosen)
        if owner != chosen:
            raise ValueError(
                f"{flag_of(name)} is given, but it is for dataset {owner}, and the dataset is {chosen}; leave it out, "
                f"or add --dataset-name {owner}"
            )
    if hasattr(namespace, "input_len"):
        if chosen != "random":
            raise ValueError(f"--input-len is given, but {_INPUT_LEN_REMEDIES[chosen]}")
        _set_once(given, "random_input_len", "--input-len", namespace.input_len)
    if hasattr(namespace, "output_len"):
        _set_once(given, _OUTPUT_LENS[chosen], "--output-len", namespace.output_len)
    return DatasetConfig(**given)


_INPUT_LEN_REMEDIES = {
    "prefix_repetition": "prompts of dataset prefix_repetition have two parts; give --prefix-repetition-prefix-len and "
    "--prefix-repetition-suffix-len",
    **{
        name: f"prompts of dataset {name} are as long as they are; leave it out, or choose --dataset-name random"
        for name in ("sharegpt", "custom", "builtin")
    },
}


def _set_once(given: dict[str, Any], name: str, flag: str, value: int) -> None:
    if name in given:
        raise ValueError(f"{flag} and {flag_of(name)} are both given, and mean the same; leave one of them out")
    given[name] = value
