"""The names that users type are frozen here: a change of this file is a change of the public interface."""

import argparse

import pelton
from pelton.config import EngineArgs
from pelton.sampling_params import BeamSearchParams, SamplingParams

PUBLIC_NAMES = ["LLM", "SamplingParams"]

SAMPLING_PARAMETERS = [
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "bad_words",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "logit_bias",
    "allowed_token_ids",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "extra_args",
    "output_kind",
]

BEAM_SEARCH_PARAMETERS = [
    "beam_width",
    "max_tokens",
    "ignore_eos",
    "temperature",
    "length_penalty",
    "include_stop_str_in_output",
]

ENGINE_ARGUMENTS = [
    "model",
    "revision",
    "max_model_len",
    "block_size",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "prefix_caching_hash_algo",
    "max_num_batched_tokens",
    "max_num_seqs",
    "long_prefill_token_threshold",
    "scheduling_policy",
    "max_logprobs",
    "logprobs_mode",
    "generation_config",
    "logits_processors",
]


def test_public_names() -> None:
    assert pelton.__all__ == PUBLIC_NAMES
    assert all(getattr(pelton, name).__name__ == name for name in PUBLIC_NAMES)
    assert pelton.SamplingParams is SamplingParams


def test_sampling_parameters() -> None:
    assert list(SamplingParams.__struct_fields__) == SAMPLING_PARAMETERS


def test_beam_search_parameters() -> None:
    assert list(BeamSearchParams.__struct_fields__) == BEAM_SEARCH_PARAMETERS


def test_engine_arguments() -> None:
    assert EngineArgs.names() == ENGINE_ARGUMENTS


def test_every_engine_argument_is_a_flag() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    EngineArgs.add_cli_args(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    expected = {"--" + name.replace("_", "-") for name in ENGINE_ARGUMENTS}
    assert flags == expected | {"--no-enable-prefix-caching"}
