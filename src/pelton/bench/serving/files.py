"""The file that the result of `pelton bench serve` is written to."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pelton.bench.result_files import append_json, check_can_be_written, json_line, write_text
from pelton.bench.serving.config import BenchServeConfig
from pelton.bench.serving.request_result import RequestResult

_NOT_IN_NAMES = re.compile(r"[^\w.=+-]+")


def make_place(config: BenchServeConfig) -> None:
    """Make the folder for the result. Raises ValueError if no result can be written there."""
    folder = Path(config.result_dir or ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--result-dir is {str(folder)!r}, which cannot be made: {error.strerror}; name another folder"
        ) from None
    if config.result_filename is None:
        check_can_be_written("--result-dir", str(folder / "result.json"))
    else:
        check_can_be_written("--result-filename", str(folder / config.result_filename))


def result_path(config: BenchServeConfig, result: Mapping[str, Any]) -> Path:
    """As the flags say; else as vLLM names it, {backend}-{rate}qps[-concurrency{N}]-{model}-{date}.json, with a label
    in place of the backend, and both ends of a rate that changes."""
    folder = Path(config.result_dir or ".")
    if config.result_filename is not None:
        return folder / config.result_filename
    limit = "" if config.max_concurrency is None else f"-concurrency{config.max_concurrency}"
    model = str(result["model_id"]).rsplit("/", 1)[-1]
    name = f"{config.label or config.backend}-{_rate(config)}{limit}-{model}-{result['date']}.json"
    return folder / _NOT_IN_NAMES.sub("_", name)


def _rate(config: BenchServeConfig) -> str:
    if config.ramp_up_strategy is None:
        return f"{config.request_rate}qps"
    return f"ramp-up-{config.ramp_up_strategy}-{config.ramp_up_start_rps}qps-{config.ramp_up_end_rps}qps"


def details(results: Sequence[RequestResult]) -> dict[str, Any]:
    """Lists with an entry per request, failed ones included, in the order in which they were due. Times are seconds,
    and e2el of a failed one is the time until it had failed. Lengths that are not known are None."""
    return {
        "input_lens": [result.prompt_len or None for result in results],
        "output_lens": [result.output_len for result in results],
        "ttfts": [result.ttft for result in results],
        "itls": [result.itls for result in results],
        "e2els": [result.time_taken for result in results],
        "start_times": [result.start_time for result in results],
        "generated_texts": [result.text for result in results],
        "errors": [result.error for result in results],
    }


def save_result(path: Path, result: Mapping[str, Any], *, append: bool) -> None:
    """As one line of JSON; with `append`, after the lines that the file has. Raises OSError."""
    if append:
        append_json(path, result)
    else:
        write_text(path, json_line(result))
