"""The names that users type are frozen here: a change of this file is a change of the public interface."""

import argparse
from dataclasses import fields
from importlib import import_module
from inspect import signature

import pelton
from pelton.cli import bench, main
from pelton.config import EngineArgs, StructuredOutputsConfig
from pelton.core.metrics import Counter, Gauge, Histogram
from pelton.core.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from pelton.engine.beam_search import BeamSearchOutput, BeamSearchSequence
from pelton.sampling.logits_processor import LogitsProcessor
from pelton.sampling_params import BeamSearchParams, GuidedDecodingParams, SamplingParams, StructuredOutputsParams

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
    "structured_outputs",
    "guided_decoding",
    "extra_args",
    "output_kind",
]

STRUCTURED_OUTPUTS_PARAMETERS = [
    "json",
    "regex",
    "choice",
    "grammar",
    "json_object",
    "structural_tag",
    "disable_any_whitespace",
    "disable_additional_properties",
    "whitespace_pattern",
    "backend",
]
STRUCTURED_OUTPUTS_SETTINGS = [
    "backend",
    "disable_any_whitespace",
    "disable_additional_properties",
    "max_check_seconds",
    "max_compile_seconds",
    "cache_size",
]

BEAM_SEARCH_PARAMETERS = [
    "beam_width",
    "max_tokens",
    "ignore_eos",
    "temperature",
    "length_penalty",
    "include_stop_str_in_output",
]

METHODS = {
    "generate": "prompts sampling_params use_tqdm priority",
    "chat": "messages sampling_params use_tqdm chat_template add_generation_prompt continue_final_message tools "
    "chat_template_kwargs",
    "beam_search": "prompts params use_tqdm concurrency_limit",
    "get_tokenizer": "",
    "get_default_sampling_params": "",
    "get_metrics": "",
    "reset_prefix_cache": "",
    "shutdown": "",
}
"""Methods of `LLM`, and their parameters."""

OUTPUT_FIELDS = {
    RequestOutput: "request_id prompt prompt_token_ids outputs finished num_cached_tokens prompt_logprobs metrics",
    CompletionOutput: "index text token_ids cumulative_logprob logprobs finish_reason stop_reason",
    Logprob: "logprob rank decoded_token",
    RequestMetrics: "arrival_time scheduled_ts first_token_ts last_token_ts first_token_latency num_generation_tokens",
    BeamSearchOutput: "sequences",
    BeamSearchSequence: "tokens logprobs cum_logprob text finish_reason stop_reason",
    Counter: "name labels value",
    Gauge: "name labels value",
    Histogram: "name labels count sum buckets",
}

SAMPLING_FLAGS = {
    "--n",
    "--presence-penalty",
    "--frequency-penalty",
    "--repetition-penalty",
    "--temperature",
    "--top-p",
    "--top-k",
    "--min-p",
    "--seed",
    "--stop",
    "--stop-token-ids",
    "--include-stop-str-in-output",
    "--no-include-stop-str-in-output",
    "--bad-words",
    "--ignore-eos",
    "--no-ignore-eos",
    "--max-tokens",
    "--min-tokens",
    "--logprobs",
    "--prompt-logprobs",
    "--logit-bias",
    "--allowed-token-ids",
    "--detokenize",
    "--no-detokenize",
    "--skip-special-tokens",
    "--no-skip-special-tokens",
    "--spaces-between-special-tokens",
    "--no-spaces-between-special-tokens",
    "--truncate-prompt-tokens",
    "--structured-outputs",
    "--extra-args",
}
NOT_IN_CHAT = {"--n", "--logprobs", "--prompt-logprobs", "--detokenize", "--no-detokenize"}

SERVE_FLAGS = {
    "--trust-remote-code",
    "--host",
    "--port",
    "--uds",
    "--api-key",
    "--api-key-file",
    "--served-model-name",
    "--chat-template",
    "--trust-request-chat-template",
    "--no-trust-request-chat-template",
    "--tool-call-parser",
    "--enable-auto-tool-choice",
    "--no-enable-auto-tool-choice",
    "--root-path",
    "--ssl-keyfile",
    "--ssl-certfile",
    "--ssl-ca-certs",
    "--allowed-origins",
    "--api-server-count",
    "-asc",
    "--shutdown-timeout",
    "--max-num-queued-reqs",
    "--stall-timeout",
    "--log-requests",
    "--no-log-requests",
    "--enable-admin-endpoints",
    "--no-enable-admin-endpoints",
    "--metrics-prefix",
    "--max-request-bytes",
    "--data-parallel-size",
    "-dp",
    "--data-parallel-size-local",
    "-dpl",
    "--data-parallel-start-rank",
    "-dpr",
    "--data-parallel-address",
    "-dpa",
    "--data-parallel-rpc-port",
    "-dpp",
    "--headless",
    "--no-headless",
}

RUN_BATCH_FLAGS = {
    "--input-file",
    "-i",
    "--output-file",
    "-o",
    "--served-model-name",
    "--chat-template",
    "--trust-request-chat-template",
    "--no-trust-request-chat-template",
    "--tool-call-parser",
    "--enable-auto-tool-choice",
    "--no-enable-auto-tool-choice",
    "--data-parallel-size",
    "-dp",
}

DATASET_FLAGS = {
    "--dataset-name",
    "--dataset-path",
    "--num-prompts",
    "--seed",
    "--no-oversample",
    "--random-input-len",
    "--random-output-len",
    "--random-range-ratio",
    "--random-prefix-len",
    "--prefix-repetition-prefix-len",
    "--prefix-repetition-suffix-len",
    "--prefix-repetition-num-prefixes",
    "--prefix-repetition-output-len",
    "--sharegpt-output-len",
    "--custom-output-len",
    "--builtin-output-len",
    "--input-len",
    "--output-len",
}

BENCH_SERVE_FLAGS = {
    "--backend",
    "--base-url",
    "--host",
    "--port",
    "--endpoint",
    "--model",
    "--served-model-name",
    "--tokenizer",
    "--header",
    "--request-rate",
    "--burstiness",
    "--max-concurrency",
    "--ramp-up-strategy",
    "--ramp-up-start-rps",
    "--ramp-up-end-rps",
    "--num-warmups",
    "--ready-check-timeout-sec",
    "--ignore-eos",
    "--no-ignore-eos",
    "--temperature",
    "--top-p",
    "--top-k",
    "--min-p",
    "--extra-body",
    "--percentile-metrics",
    "--metric-percentiles",
    "--goodput",
    "--stop-when",
    "--request-timeout",
    "--max-seconds",
    "--save-result",
    "--save-detailed",
    "--append-result",
    "--result-dir",
    "--result-filename",
    "--metadata",
    "--label",
    "--plot",
    "--disable-tqdm",
}

TUNE_FLAGS = {
    "--slo",
    "--maximize",
    "--minimize",
    "--request-rate",
    "--max-concurrency",
    "--backend",
    "--ignore-eos",
    "--no-ignore-eos",
    "--num-warmups",
    "--search",
    "--trials",
    "--max-minutes",
    "--confirm-rounds",
    "--output-dir",
    "--plot",
}

COMMANDS = {
    "generate": {"--file", "--chat", "--system", "--chat-template", "--jsonl", "--output"} | SAMPLING_FLAGS,
    "chat": {"--system", "--chat-template", "--verbose"} | SAMPLING_FLAGS - NOT_IN_CHAT,
    "serve": SERVE_FLAGS,
    "run-batch": RUN_BATCH_FLAGS,
    "models": {"--revision", "--show-program", "--dtype", "--quantization"},
    "bench": set(),
    "tune": TUNE_FLAGS | DATASET_FLAGS,
}
"""Commands, and their flags besides --help and those of the engine."""
WITHOUT_THE_ENGINE = {"models", "bench", "tune"}

BENCHMARKS = {
    "latency": {
        "--input-tokens",
        "--input-len",
        "--output-tokens",
        "--output-len",
        "--batch-size",
        "--n",
        "--num-iters-warmup",
        "--num-iters",
        "--seed",
        "--disable-detokenize",
        "--output-json",
    },
    "throughput": {"--n", "--num-warmups", "--disable-detokenize", "--output-json"} | DATASET_FLAGS,
    "serve": BENCH_SERVE_FLAGS | DATASET_FLAGS,
    "roofline": {
        "--batch-sizes",
        "--context",
        "--seconds",
        "--output-json",
        "--plot",
        "--model",
        "--revision",
        "--dtype",
        "--quantization",
        "--block-size",
        "--kv-cache-dtype",
        "--num-threads",
    },
}
"""What `pelton bench` measures, and its flags besides --help and, in the first two, those of the engine."""

ENGINE_ARGUMENTS = [
    "model",
    "revision",
    "dtype",
    "quantization",
    "max_model_len",
    "block_size",
    "kv_cache_dtype",
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
    "structured_outputs_config",
    "reasoning_parser",
    "num_threads",
    "enforce_eager",
    "check_nan",
    "distributed_executor_backend",
]


def test_public_names() -> None:
    assert pelton.__all__ == PUBLIC_NAMES
    assert all(getattr(pelton, name).__name__ == name for name in PUBLIC_NAMES)
    assert pelton.SamplingParams is SamplingParams


def test_sampling_parameters() -> None:
    assert list(SamplingParams.__struct_fields__) == SAMPLING_PARAMETERS


def test_beam_search_parameters() -> None:
    assert list(BeamSearchParams.__struct_fields__) == BEAM_SEARCH_PARAMETERS
    assert list(StructuredOutputsParams.__struct_fields__) == STRUCTURED_OUTPUTS_PARAMETERS
    assert GuidedDecodingParams is StructuredOutputsParams
    assert [field.name for field in fields(StructuredOutputsConfig)] == STRUCTURED_OUTPUTS_SETTINGS


def test_engine_arguments() -> None:
    assert EngineArgs.names() == ENGINE_ARGUMENTS


def test_methods() -> None:
    found = {name: getattr(pelton.LLM, name) for name in dir(pelton.LLM) if not name.startswith("_")}
    assert {name: " ".join(list(signature(method).parameters)[1:]) for name, method in found.items()} == METHODS


def test_output_fields() -> None:
    for kind, names in OUTPUT_FIELDS.items():
        assert " ".join(field.name for field in fields(kind)) == names, kind


def flags_of(module: str) -> set[str]:
    actions = import_module(module).make_parser()._actions
    return {flag for action in actions for flag in action.option_strings} - {"-h", "--help"}


def flags_of_the_engine() -> set[str]:
    parser = argparse.ArgumentParser(add_help=False)
    EngineArgs.add_cli_args(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def test_commands() -> None:
    assert main.COMMANDS.keys() == COMMANDS.keys()
    for name, (module, _) in main.COMMANDS.items():
        engine = set() if name in WITHOUT_THE_ENGINE else flags_of_the_engine()
        assert flags_of(module) == COMMANDS[name] | engine, name


def test_benchmarks() -> None:
    assert bench.BENCHMARKS.keys() == BENCHMARKS.keys()
    for name, (module, _) in bench.BENCHMARKS.items():
        engine = flags_of_the_engine() if name in ("latency", "throughput") else set()
        assert flags_of(module) == BENCHMARKS[name] | engine, name


def test_the_base_of_logits_processors() -> None:
    names = [name for name in vars(LogitsProcessor) if not name.startswith("_")]
    assert names == ["arguments", "validate_params", "new_request"]


def test_every_engine_argument_is_a_flag() -> None:
    expected = {"--" + name.replace("_", "-") for name in ENGINE_ARGUMENTS}
    assert flags_of_the_engine() == expected | {"--no-enable-prefix-caching", "--no-enforce-eager", "--no-check-nan"}
