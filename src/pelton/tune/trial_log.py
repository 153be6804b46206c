"""The log of a search: one line of JSON per trial, from which a search goes on where it ended."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from pelton.error_text import in_file, shown
from pelton.tune.serve_flags import Settings

COMPLETE, SLO_MISSED, FAILED = "complete", "slo_missed", "failed"
STATES = (COMPLETE, SLO_MISSED, FAILED)
_REMEDY = "move the folder away, or choose another --output-dir"


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
    failure: str = ""
    """How many requests failed, and why; empty if none did."""


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
    attempt: int = 1
    """2 where the first one, in an earlier run, had failed."""

    @property
    def load(self) -> Load | None:
        """The one that the metrics are of."""
        return next((load for load in self.loads if load.result_file == self.result_file), None)


@dataclass(frozen=True)
class Repetition:
    """A load with a trial's settings that was measured again at the end."""

    trial: int
    request_rate: float | None
    """That it was measured at."""
    round: int
    load: Load


class TrialLog:
    """`trials.jsonl`, `again.jsonl` and `study.json` in a folder, for one process at a time."""

    def __init__(self, folder: Path, study: Mapping[str, Any]) -> None:
        """`study`: plain data that tells what is sought and under which conditions.

        Raises ValueError if the folder has another study, another process uses it, or the log cannot be read.
        """
        self.folder = folder
        self.trials: list[Trial] = []
        self.repetitions: list[Repetition] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "trials.jsonl").open("a+b")
        self._again: IO[bytes] | None = None
        try:
            _lock(self._file, folder)
            self._again = (folder / "again.jsonl").open("a+b")
            self._read()
            _check_study(folder / "study.json", study, has_trials=bool(self.trials))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "TrialLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._again is not None:
            self._again.close()

    def append(self, trial: Trial) -> None:
        """Write it, for good: a machine that fails afterwards does not lose it. A further attempt takes the place of
        the trial that has its number; the log has both."""
        _write_line(self._file, trial)
        self._take(trial)

    def append_repetition(self, repetition: Repetition) -> None:
        """Write it, for good."""
        assert self._again is not None
        _write_line(self._again, repetition)
        self.repetitions.append(repetition)

    def _take(self, trial: Trial) -> None:
        self.trials[trial.number :] = [trial, *self.trials[trial.number + 1 :]]

    def _read(self) -> None:
        with in_file(self.folder / "trials.jsonl"):
            for number, line in enumerate(_whole_lines(self._file), 1):
                self._take(_trial(line, number, self.trials))
        assert self._again is not None
        with in_file(self.folder / "again.jsonl"):
            self.repetitions = [_repetition(line, number) for number, line in enumerate(_whole_lines(self._again), 1)]


def _write_line(file: IO[bytes], entry: Trial | Repetition) -> None:
    file.write(json.dumps(asdict(entry), allow_nan=False).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _whole_lines(file: IO[bytes]) -> list[bytes]:
    """All but the beginning of one that was never finished, as its writer was ended; that is taken out of the file."""
    file.seek(0)
    content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        file.truncate(len(whole))
    return whole.splitlines()


def _lock(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"another pelton tune is at work in {folder}; wait for its end, or choose another --output-dir"
        ) from None


def _trial(line: bytes, number: int, former: Sequence[Trial]) -> Trial:
    try:
        content = json.loads(line)
        trial = Trial(**{**content, "loads": [Load(**load) for load in content["loads"]]})
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"line {number} is no trial; {_REMEDY}") from None
    has_failed = [one.number for one in former if one.state == FAILED]
    if trial.number not in [len(former), *has_failed] or trial.state not in STATES:
        raise ValueError(f"line {number} has trial {shown(trial.number)}, {shown(trial.state)}; {_REMEDY}")
    return trial


def _repetition(line: bytes, number: int) -> Repetition:
    try:
        content = json.loads(line)
        return Repetition(**{**content, "load": Load(**content["load"])})
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"line {number} is no load that was measured again; {_REMEDY}") from None


def _check_study(path: Path, study: Mapping[str, Any], *, has_trials: bool) -> None:
    """Write it if nothing has been tried yet, and compare it otherwise."""
    study = json.loads(json.dumps(study))
    if not has_trials:
        _write_study(path, study)
        return
    if not path.exists():
        raise ValueError(f"{path.parent} has trials, but no {path.name}; choose another --output-dir")
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


def _write_study(path: Path, study: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        file.write(json.dumps(study, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _flat(entries: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in entries.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
