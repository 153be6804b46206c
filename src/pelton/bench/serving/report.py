"""The result of a benchmark of a server, as text."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pelton.bench.bounds import LATENCIES, percentile_key
from pelton.error_text import one_line

_NOTHING = "-"


def serve_report(result: Mapping[str, Any], *, latencies: Sequence[str], percentiles: Sequence[float]) -> str:
    """Lines for people: counts, throughput, a table of latencies in milliseconds, what the load generator took, and
    what went wrong."""
    lines = [*_counts(result), "", *_latency_table(result, latencies, percentiles), "", *_client(result)]
    lines += [f"Failed: {failure['count']} times {one_line(failure['first'])}" for failure in result["failures"]]
    if result["stopped"]:
        lines.append(f"Stopped early: {result['stopped']}")
    lines += [f"Warning: {warning}" for warning in result["warnings"]]
    return "\n".join(lines)


def _counts(result: Mapping[str, Any]) -> Iterable[str]:
    limit = "" if result["max_concurrency"] is None else f", at most {result['max_concurrency']} at once"
    yield f"Model:      {result['model_id']} at {result['server']['url']}"
    dataset = result["dataset"]["dataset_name"]
    yield f"Load:       {result['num_prompts']} requests of dataset {dataset}, {_rate(result)}{limit}"
    cancelled = f", {result['cancelled']} cancelled" if result["cancelled"] else ""
    yield (
        f"Requests:   {result['completed']} completed, {result['failed']} failed{cancelled}, in "
        f"{result['duration']:.2f} s; up to {result['max_concurrent_requests']} at once"
    )
    yield (
        f"Tokens:     {_number(result['total_input_tokens'], 0)} input ({result['cached_tokens']} cached), "
        f"{result['total_output_tokens']} output, counted by {result['counted_by']}; "
        f"{_number(result['tokens_per_event'])} per event"
    )
    goodput = f", {result['request_goodput']:.2f} of them within --goodput" if "request_goodput" in result else ""
    yield (
        f"Throughput: {result['request_throughput']:.2f} requests/s{goodput}, "
        f"{result['output_throughput']:.1f} output tokens/s (at most {result['max_output_tokens_per_s']:.0f} in a "
        f"second), {_number(result['total_token_throughput'], 1)} tokens/s in all"
    )


def _latency_table(result: Mapping[str, Any], latencies: Sequence[str], percentiles: Sequence[float]) -> Iterable[str]:
    columns = ["mean", "median", "std", *map(percentile_key, percentiles)]
    rows = [["Milliseconds", *columns]]
    for latency in latencies:
        figures = [_number(result[f"{column}_{latency}_ms"]) for column in columns]
        rows.append([f"{latency} ({LATENCIES[latency]})", *figures])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        yield "  ".join(
            [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))]
        )


def _client(result: Mapping[str, Any]) -> Iterable[str]:
    yield (
        f"Load generator: {result['client_cpu_share']:.0%} of a processor, could take at most "
        f"{_number(result['client_ceiling_tokens_per_s'], 0)} tokens/s; sent requests late by "
        f"{_number(result['median_send_delay_ms'])} ms (median), {_number(result['max_send_delay_ms'])} ms (most)"
    )
    if result["max_concurrency"] is not None:
        yield (
            f"Waited for their turn, which is in no latency: {_number(result['median_wait_ms'])} ms (median), "
            f"{_number(result['max_wait_ms'])} ms (most)"
        )


def _rate(result: Mapping[str, Any]) -> str:
    if "ramp_up_strategy" in result:
        return f"{result['ramp_up_start_rps']:g} to {result['ramp_up_end_rps']:g} requests/s"
    return "all at once" if result["request_rate"] == "inf" else f"{result['request_rate']:g} requests/s"


def _number(value: float | None, digits: int = 2) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"
