"""`pelton generate --jsonl`: any number of requests from JSON lines, answered in their order."""

from codecs import BOM_UTF8
from collections import deque
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from pelton.cli import jsonl_format
from pelton.cli.figures import Figures
from pelton.cli.messages import OUTPUT, complain, note, system_errors_of
from pelton.cli.nonblocking_lines import NonblockingLines
from pelton.core.outputs import RequestOutput
from pelton.engine.llm_engine import LLMEngine
from pelton.sampling_params import RequestOutputKind, SamplingParams

UNWRITTEN_PER_RUNNING = 16
"""Answers that wait for an earlier one, at most: so many times the sequences that may be in the engine."""


@dataclass
class _Line:
    """A line of the input that has not been answered yet."""

    number: int
    id: str | int
    params: SamplingParams | None = None
    """None for a line that was refused."""
    answer: bytes | None = None


class JSONLBatch:
    """Keeps a bounded number of requests in the engine, and reads on as they finish.

    `max_in_engine` counts sequences, so that a request with n choices counts n times.
    """

    def __init__(
        self,
        engine: LLMEngine,
        source: NonblockingLines,
        target: BinaryIO,
        defaults: SamplingParams,
        *,
        chat_template: str | None,
        max_in_engine: int,
    ) -> None:
        self.figures = Figures()
        self.num_lines = 0
        """Lines that are not blank."""
        self.num_failed = 0
        self._engine = engine
        self._source = source
        self._target = target
        self._defaults = msgspec.structs.replace(defaults, output_kind=RequestOutputKind.FINAL_ONLY)
        self._chat_template = chat_template
        self._max_in_engine = max_in_engine
        self._line_number = 0
        self._running: dict[str, _Line] = {}
        self._num_in_engine = 0
        self._unwritten: deque[_Line] = deque()

    def run(self) -> None:
        """Answer every line, each as soon as those before it are answered."""
        while True:
            self._write_due()
            is_idle = not self._running
            # Whoever writes a line and waits for its answer gets it: nothing waits for lines while there is work.
            if self._has_room and (line := self._source.read_line(wait=is_idle)) is not None:
                self._take(line)
            elif is_idle:
                return
            else:
                for output in self._engine.step():
                    self._answer(output)

    @property
    def _has_room(self) -> bool:
        return (
            self._num_in_engine < self._max_in_engine
            and len(self._unwritten) < UNWRITTEN_PER_RUNNING * self._max_in_engine
        )

    def _take(self, text: bytes) -> None:
        self._line_number += 1
        if self._line_number == 1:
            text = text.removeprefix(BOM_UTF8)
        if not text.strip():
            return
        self.num_lines += 1
        line = _Line(self._line_number, self._line_number)
        self._unwritten.append(line)
        try:
            if len(text) > self._source.max_line_bytes:
                raise ValueError(f"the line has more than {self._source.max_line_bytes} bytes; split it")
            content = jsonl_format.parse_line(text)
            line.id = jsonl_format.read_id(content, line.number)
            request = jsonl_format.read_request(content, self._defaults, self._engine.tokenizer, self._chat_template)
            request_id = self._engine.add_request(request.prompt, request.params, priority=request.priority)
        except ValueError as error:
            self.num_failed += 1
            line.answer = jsonl_format.to_line(jsonl_format.error(str(error), line.id, line.number))
            return
        line.params = request.params
        self._running[request_id] = line
        self._num_in_engine += request.params.n

    def _answer(self, output: RequestOutput) -> None:
        self.figures.add(output)
        line = self._running.pop(output.request_id)
        assert line.params is not None
        self._num_in_engine -= line.params.n
        content = jsonl_format.answer(output, line.id, line.number, line.params)
        failures = [str(c.stop_reason) for c in output.outputs if c.finish_reason == "error"]
        if failures:
            self.num_failed += 1
            content |= jsonl_format.error(failures[0], line.id, line.number)
        line.answer = jsonl_format.to_line(content)

    def _write_due(self) -> None:
        while self._unwritten and (answer := self._unwritten[0].answer) is not None:
            with system_errors_of(OUTPUT):
                self._target.write(answer)
                self._target.flush()
            self._unwritten.popleft()


def run(engine: LLMEngine, source: NonblockingLines, target: BinaryIO, defaults: SamplingParams, **options: Any) -> int:
    """Answer every line, say how it went on standard error, and return the exit status."""
    batch = JSONLBatch(engine, source, target, defaults, **options)
    batch.run()
    note(batch.figures.report_batch())
    if batch.num_failed:
        complain(f"{batch.num_failed} of {batch.num_lines} requests failed; their lines say why")
    return 1 if batch.num_failed else 0
