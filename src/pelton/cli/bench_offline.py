"""What the benchmarks of an engine in this process share: a flag for their file, and what becomes of their results."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from pelton.bench.result_files import write_json
from pelton.cli.messages import complain, show


def add_output_json(group: "argparse._ActionsContainer") -> None:
    group.add_argument(
        "--output-json",
        metavar="FILE",
        help="where the figures go, as JSON, besides standard output; what the file has is overwritten",
    )


def tell(
    measure: Callable[[], dict[str, Any]], report: Callable[[Mapping[str, Any]], str], output_json: str | None
) -> int:
    """Measure, write the file, and show the report; the exit status is 1 if requests failed."""
    from pelton.bench.offline import FailedRequestsError  # loads the engine, which help does without

    try:
        result = measure()
    except FailedRequestsError as error:
        complain(str(error))
        return 1
    if output_json is not None:
        write_json(output_json, result)
    show(report(result))
    return 0
