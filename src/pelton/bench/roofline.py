"""How near decode steps of a model come to what the machine can do.

The model is the roofline's (Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785): a step takes at least
the time of reading what it needs, and at least that of its arithmetic.

The report, which is the JSON of `pelton bench roofline` and what its plot shows:

- `benchmark`: "roofline"; `date`; `machine`: see `describe_machine`; `settings`: those of `RooflineConfig`;
  `engine_args`
- `ceilings`: what the machine can do, measured in several rounds, the best of them (and `median_...` of them):
  `memory_gb_per_s` (all threads read far more than the caches hold, `memory_buffer_bytes`), `cache_gb_per_s` (they read
  half of what the last-level cache holds, `cache_buffer_bytes`; null if its size is not known, as is
  `last_level_cache_bytes`), and `gflop_per_s`: {format: multiplications and additions per second / 1e9}, by the
  kernels' own instructions, without waiting for memory
- `model`, `kernels`, `context`, `weights`: {"bytes": read by every step, "formats": {format: bytes}},
  `kv_bytes_per_request`, `kv_cache_dtype`, `flop_per_token`: {format or "attention": multiplications and additions}
- `rows`: one for each batch size, ascending: `batch_size`, `measured_ms` (median step), `best_ms`, `steps` (how many
  were timed), `tokens_per_s`; `bytes` (weights, and keys and values of all requests), `read_from` ("cache", "memory",
  or "cache and memory" where a part of so many bytes stays in the cache), `read_gb_per_s` (measured for so many bytes),
  `memory_ms` (the time of reading them), `compute_ms` (of the operations at the ceilings), `predicted_ms` (the larger
  of both), `bound` ("memory" or "compute"), `fraction` (predicted / measured: of the ceiling, how much is reached)
- `b_sat`: batch size (a float) whose products and attention take as long as reading the weights
- `knee`: batch size (a float) at which the line through 0 and the largest batch's time meets the smallest batch's time:
  how many of the smallest batch's steps one of the largest replaces, times its size; null for a single batch size
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from statistics import median
from typing import Any

from tqdm import tqdm

from pelton.bench import ceilings as machine_ceilings
from pelton.bench.ceilings import Ceilings, check_native
from pelton.bench.machine import describe_machine
from pelton.bench.model_cost import ModelCost, model_cost
from pelton.bench.offline import measured_on
from pelton.bench.roofline_config import RooflineConfig
from pelton.bench.steps import StepBench, StepShape
from pelton.config import EngineArgs
from pelton.runner.execution import start_backend
from pelton.sampling_params import SamplingParams

ROUNDS = 5
"""Ceilings and batch sizes are measured in turns, for a machine that others use too changes its speed."""
_TOO_GOOD = 1.05


def run_roofline(config: RooflineConfig, args: EngineArgs, *, progress: bool = False) -> dict[str, Any]:
    """Load the model and measure. -> the report.

    Raises ValueError for a model that cannot be read, for batches that the memory has no room for, and where there are
    no native kernels.
    """
    with closing(start_backend(args.execution)) as backend:
        machine = describe_machine(check_native(backend))
    shapes = [StepShape(size, 1, config.context) for size in sorted(config.batch_sizes)]
    with closing(StepBench(args, shapes, SamplingParams(temperature=0.0), progress=progress)) as bench:
        cost = model_cost(bench.model, config.context)
        sizes = [cost.weight_bytes_total + shape.num_requests * cost.kv_bytes for shape in shapes]
        ceilings = Ceilings(bench.backend, [cost.weight_bytes_total, *sizes])
        times = _measure(bench, ceilings, shapes, config.seconds, progress=progress)
        kernels = bench.describe()
    predicted = predict(cost, ceilings, {shape.num_requests: times[shape] for shape in shapes})
    told = {"settings": asdict(config), "ceilings": ceilings.report()}
    return measured_on("roofline", kernels, args, machine) | told | predicted


def _measure(
    bench: StepBench, ceilings: Ceilings, shapes: Sequence[StepShape], seconds: float, *, progress: bool
) -> dict[StepShape, list[float]]:
    """-> seconds of every step."""
    times: dict[StepShape, list[float]] = {shape: [] for shape in shapes}
    for shape in shapes:
        bench.run(shape)
    with tqdm(total=ROUNDS * (1 + len(shapes)), desc="Roofline", leave=False, disable=not progress) as bar:
        for _ in range(ROUNDS):
            ceilings.measure()
            bar.update()
            for shape in shapes:
                times[shape] += _steps(bench, shape, seconds / ROUNDS)
                bar.update()
    return times


def _steps(bench: StepBench, shape: StepShape, seconds: float) -> list[float]:
    """For that long, and at least one."""
    times: list[float] = []
    total = 0.0
    while not times or total < seconds:
        times.append(bench.run(shape))
        total += times[-1]
    return times


def predict(cost: ModelCost, ceilings: Ceilings, times: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """The part of the report that is about a model. `times` are seconds of steps of each batch size, ascending."""
    token_seconds = _token_seconds(cost, ceilings)
    rows = [_row(cost, ceilings, token_seconds, size, steps) for size, steps in times.items()]
    weights_seconds = cost.weight_bytes_total / ceilings.reading(cost.weight_bytes_total)
    return {
        "context": cost.context,
        "weights": {"bytes": cost.weight_bytes_total, "formats": cost.weight_bytes},
        "kv_bytes_per_request": cost.kv_bytes,
        "kv_cache_dtype": cost.kv_cache_dtype,
        "flop_per_token": cost.product_flop | {"attention": cost.attention_flop},
        "rows": rows,
        "b_sat": round(weights_seconds / token_seconds, 1),
        "knee": _knee(rows),
    }


def _token_seconds(cost: ModelCost, ceilings: Ceilings) -> float:
    """Of the arithmetic for one token."""
    attention = cost.attention_flop / ceilings.attention(cost.kv_cache_dtype)
    return attention + sum(flop / ceilings.products(name) for name, flop in cost.product_flop.items())


def _row(
    cost: ModelCost, ceilings: Ceilings, token_seconds: float, batch_size: int, times: Sequence[float]
) -> dict[str, Any]:
    num_bytes = cost.weight_bytes_total + batch_size * cost.kv_bytes
    rate = ceilings.reading(num_bytes)
    memory, compute, measured = num_bytes / rate, batch_size * token_seconds, median(times)
    return {
        "batch_size": batch_size,
        "measured_ms": round(1e3 * measured, 4),
        "best_ms": round(1e3 * min(times), 4),
        "steps": len(times),
        "tokens_per_s": round(batch_size / measured, 2),
        "bytes": num_bytes,
        "read_from": ceilings.place(num_bytes),
        "read_gb_per_s": round(rate / 1e9, 2),
        "memory_ms": round(1e3 * memory, 4),
        "compute_ms": round(1e3 * compute, 4),
        "predicted_ms": round(1e3 * max(memory, compute), 4),
        "bound": "memory" if memory >= compute else "compute",
        "fraction": round(max(memory, compute) / measured, 4),
    }


def _knee(rows: Sequence[Mapping[str, Any]]) -> float | None:
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    return round(float(last["batch_size"] * first["measured_ms"] / last["measured_ms"]), 1)


def text(report: Mapping[str, Any]) -> str:
    """The report for people."""
    machine, weights, flop = report["machine"], report["weights"], report["flop_per_token"]
    formats = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in weights["formats"].items())
    operations = ", ".join(f"{name} {count / 1e6:.1f}" for name, count in flop.items())
    knee = "" if report["knee"] is None else f"; measured knee: {report['knee']:.1f}"
    cpu = machine["cpu"] or machine["architecture"]
    cached = f"keys and values of a request behind {report['context']} tokens"
    lines = [
        f"Model: {report['model']}; {report['kernels']}",
        f"Machine: {cpu}, {machine['cores']} cores, Pelton {machine['pelton']}; barrier {machine['barrier_ns']} ns",
        *machine_ceilings.text(report["ceilings"]),
        f"A step reads weights: {formats}; {cached}: {report['kv_bytes_per_request'] / 1e6:.2f} MB",
        f"Operations for a token, MFLOP: {operations}",
        "",
        *_table(report["rows"]),
        "",
        f"Products take as long as reading the weights at a batch size of {report['b_sat']:.1f} (B_sat){knee}",
    ]
    if any(row["fraction"] > _TOO_GOOD for row in report["rows"]):
        lines.append(
            "A step cannot be faster than its ceiling: something else used the machine while that was measured, or "
            "keys and values stayed in caches; measure again on an idle machine"
        )
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    heading = (
        f"{'batch':>5} {'tokens/s':>9} {'measured':>10} {'reading':>10} {'computing':>10} {'bound':>8} "
        f"{'of ceiling':>10}  read from"
    )
    return [heading] + [
        f"{row['batch_size']:>5} {row['tokens_per_s']:>9.1f} {row['measured_ms']:>7.2f} ms {row['memory_ms']:>7.2f} ms "
        f"{row['compute_ms']:>7.2f} ms {row['bound']:>8} {row['fraction']:>10.0%}  {row['read_from']}, "
        f"{row['read_gb_per_s']:.1f} GB/s"
        for row in rows
    ]
