"""The entries that results of `pelton bench serve` have, whatever was measured."""

from pelton.bench.bounds import parse_latency

_KEYS = frozenset(
    {
        "backend",
        "burstiness",
        "cached_tokens",
        "cancelled",
        "client_ceiling_tokens_per_s",
        "client_cpu_seconds",
        "client_cpu_share",
        "completed",
        "counted_by",
        "dataset",
        "date",
        "duration",
        "e2els",
        "endpoint_type",
        "errors",
        "failed",
        "failures",
        "generated_texts",
        "input_lens",
        "itls",
        "label",
        "machine",
        "max_concurrency",
        "max_concurrent_requests",
        "max_output_tokens_per_s",
        "max_send_delay_ms",
        "max_wait_ms",
        "median_send_delay_ms",
        "median_wait_ms",
        "model_id",
        "num_prompts",
        "offered_request_rate",
        "output_lens",
        "output_throughput",
        "p99_send_delay_ms",
        "p99_wait_ms",
        "ramp_up_end_rps",
        "ramp_up_start_rps",
        "ramp_up_strategy",
        "request_goodput",
        "request_rate",
        "request_throughput",
        "server",
        "settings",
        "start_times",
        "stopped",
        "tokenizer_id",
        "tokens_per_event",
        "total_input_tokens",
        "total_output_tokens",
        "total_token_throughput",
        "ttfts",
        "warnings",
    }
)


def is_result_key(name: str) -> bool:
    """Whether a result has such an entry, or has it with other flags."""
    return name in _KEYS or parse_latency(name) is not None
