"""The log of a search: one line of JSON per trial, from which a search goes on where it ended."""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from pelton.error_text import in_file, shown
from pelton.tune.serve_flags import Settings

COMPLETE, SLO_MISSED, FAILED = "complete", "slo_missed", "failed"
STATES = (COMPLETE, SLO_MISSED, FAILED)


@dataclass(frozen=True)
class Load:
    """One run of the workload against a server."""

    request_rate: float | None
    """Requests per second; None: all that the workload allows at once."""
    is_slo_met: bool
    seconds: float
    result_file: str
    """In the folder of the log."""
    metrics: dict[str, Any]
    stopped: str = ""
    """Why it was ended early; empty if it ran to its end."""


@dataclass(frozen=True)
class Trial:
    """Settings, and what came of them."""

    number: int
    settings: Settings
    """Every setting that is sought, also those with default values."""
    command: list[str]
    """What started the server."""
    state: str
    """complete; slo_missed; failed: the server did not start, or the load did not get through."""
    server_pid: int | None = None
    result_file: str | None = None
    request_rate: float | None = None
    """The highest rate that met the SLO, where it is sought; None: without limit."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Of the load with that rate, or, where none met the SLO, of the one that came nearest."""
    loads: list[Load] = field(default_factory=list)
    message: str = ""
    """Of a trial that failed."""
    start_seconds: float = 0.0
    """Until the server was ready."""
    seconds: float = 0.0

    @property
    def load(self) -> Load | None:
        """The one that the metrics are of."""
        return next((load for load in self.loads if load.result_file == self.result_file), None)


class TrialLog:
    """`trials.jsonl` and `study.json` in a folder, for one process at a time."""

    def __init__(self, folder: Path, study: Mapping[str, Any]) -> None:
        """`study`: plain data that tells what is sought and under which conditions.

        Raises ValueError if the folder has another study, another process uses it, or the log cannot be read.
        """
        self.folder = folder
        self.trials: list[Trial] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "trials.jsonl").open("a+b")
        try:
            _lock(self._file, folder)
            self._read()
            _check_study(folder / "study.json", study, has_trials=bool(self.trials))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "TrialLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, trial: Trial) -> None:
        """Write it, for good: a machine that fails afterwards does not lose it."""
        self._file.write(json.dumps(asdict(trial), allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.trials.append(trial)

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        with in_file(self.folder / "trials.jsonl"):
            for number, line in enumerate(whole.splitlines()):
                self.trials.append(_trial(line, number))
        if len(whole) < len(content):  # whoever wrote it was ended in the middle of a line
            self._file.truncate(len(whole))


def _lock(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"another pelton tune is at work in {folder}; wait for its end, or choose another --output-dir"
        ) from None


def _trial(line: bytes, number: int) -> Trial:
    remedy = "move the folder away, or choose another --output-dir"
    try:
        content = json.loads(line)
        known = {declared.name for declared in fields(Trial)}
        trial = Trial(**{name: value for name, value in content.items() if name in known})
        loads = [Load(**load) for load in content["loads"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"line {number + 1} is no trial; {remedy}") from None
    if trial.number != number or trial.state not in STATES:
        raise ValueError(f"line {number + 1} has trial {shown(trial.number)}, {shown(trial.state)}; {remedy}")
    return Trial(**{**vars(trial), "loads": loads})


def _check_study(path: Path, study: Mapping[str, Any], *, has_trials: bool) -> None:
    """Write it if there is none yet, and compare it otherwise."""
    study = json.loads(json.dumps(study))
    if not path.exists():
        if has_trials:
            raise ValueError(f"{path.parent} has trials, but no {path.name}; choose another --output-dir")
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(study, indent=2) + "\n")
        partial.replace(path)
        return
    former: Any = None
    with suppress(ValueError):
        former = json.loads(path.read_text())
    if not isinstance(former, dict):
        raise ValueError(f"{path} is no JSON object; choose another --output-dir")
    before, now = _flat(former), _flat(study)
    differences = [
        f"{name} is {shown(before.get(name))} there and {shown(now.get(name))} here"
        for name in [*now, *(name for name in before if name not in now)]
        if before.get(name) != now.get(name)
    ]
    if differences:
        raise ValueError(f"{path.parent} has another study: {'; '.join(differences)}; choose another --output-dir")


def _flat(entries: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in entries.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
