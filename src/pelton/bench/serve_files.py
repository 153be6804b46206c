"""The file that a benchmark's result is written to."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton.bench.results import RequestResult
from pelton.bench.serve_config import BenchServeConfig

_NOT_IN_NAMES = re.compile(r"[^\w.=+-]+")


def result_path(config: BenchServeConfig, result: Mapping[str, Any]) -> Path:
    """As the flags say; {backend}-{rate}qps[-concurrency{N}]-{model}-{date}.json where they do not, a label in place of
    the backend."""
    folder = Path(config.result_dir or ".")
    if config.result_filename is not None:
        return folder / config.result_filename
    limit = "" if config.max_concurrency is None else f"-concurrency{config.max_concurrency}"
    model = str(result["model_id"]).rsplit("/", 1)[-1]
    name = f"{config.label or config.backend}-{config.request_rate}qps{limit}-{model}-{result['date']}.json"
    return folder / _NOT_IN_NAMES.sub("_", name)


def details(results: Sequence[RequestResult]) -> dict[str, Any]:
    """Lists with an entry per request, failed ones included, in the order in which they were due. Times are seconds."""
    return {
        "input_lens": [result.prompt_len for result in results],
        "output_lens": [result.output_len for result in results],
        "ttfts": [result.ttft for result in results],
        "itls": [result.itls for result in results],
        "e2els": [result.e2el for result in results],
        "start_times": [result.start_time for result in results],
        "generated_texts": [result.text for result in results],
        "errors": [result.error for result in results],
    }


def save_result(path: Path, result: Mapping[str, Any], *, append: bool) -> None:
    """As one line of JSON; with `append`, after the lines that the file has. Raises OSError."""
    line = json.dumps(result, allow_nan=False) + "\n"
    with path.open("a" if append else "w", encoding="utf-8") as file:
        file.write(line)
