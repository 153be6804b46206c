"""An engine core in a process of its own: `python -m pelton.engine.core_proc`, started by the supervisor."""

import argparse
import cProfile
import io
import logging
import os
import pstats
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from queue import Empty
from typing import Any, ClassVar

import msgspec
import zmq

from pelton.config import EngineArgs
from pelton.core.control_messages import (
    CoreFailed,
    CoreHello,
    CoreInfo,
    CoreReady,
    CoreWelcome,
    FromSupervisor,
    FrontEndLost,
    Shutdown,
)
from pelton.core.dp_messages import StartWave
from pelton.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, UtilityCall, UtilityResult
from pelton.engine.core_sockets import CoreInput, CoreOutput, Message, MessageKind
from pelton.engine.engine_core import EngineCore
from pelton.engine.load_reporter import LoadReporter
from pelton.engine.lockstep import LockstepGroup, LockstepLoop
from pelton.engine.served_model import ServedModel
from pelton.engine.signals import ignore_ending_signals
from pelton.error_text import described
from pelton.parent_watch import watch_parent

logger = logging.getLogger(__name__)

_PROFILE_LINES = 40


class EngineCoreProc:
    """The busy loop of an engine core: messages, a step, outputs. It sleeps while there is nothing to do."""

    def __init__(
        self,
        core: EngineCore,
        rank: int,
        source: CoreInput,
        sink: CoreOutput,
        *,
        clock_offset: float,
        reporter: LoadReporter | None,
        lockstep: LockstepLoop | None,
    ) -> None:
        """`clock_offset`: what this machine's monotonic clock shows more than the front ends', in seconds."""
        self._core = core
        self._rank = rank
        self._inbox = source.inbox
        self._sink = sink
        self._clock_offset = clock_offset
        self._reporter = reporter
        self._lockstep = lockstep
        self._front_end_of: dict[str, int] = {}
        """Of requests that have not finished."""
        self._num_requests: Counter[int] = Counter()
        """By front end."""
        self._num_received: Counter[int] = Counter()
        """By front end, finished ones too."""
        self._refused: list[EngineCoreOutput] = []
        self._results: dict[int, list[UtilityResult]] = {}
        """By front end."""
        self._to_inform: set[int] = set()
        """Front ends that are to hear of the core's state, though no step is due."""
        self._profile: cProfile.Profile | None = None
        self._is_stopping = False

    def run(self) -> None:
        """Until told to end."""
        while not self._is_stopping:
            self._take_messages()
            if self._lockstep is not None and self._core.has_work:
                self._lockstep.note_request()  # before the others are told, and the step waits for them
            self._report()
            if self._lockstep is not None:
                self._run_in_lockstep(self._lockstep)
            elif self._core.has_work:
                self._emit(self._core.step())
            if self._refused or self._results or self._to_inform:
                idle = msgspec.structs.replace(self._core.stats, num_scheduled_tokens=0)  # no step was run
                self._emit(EngineCoreOutputs([], idle))
        self._core.shutdown()

    def _run_in_lockstep(self, lockstep: LockstepLoop) -> None:
        """Run the model once, as every other rank does, if a wave runs."""
        if not lockstep.is_running:
            return
        is_real = False
        if self._core.has_work:
            outputs = self._core.step()
            is_real = outputs.stats.num_scheduled_tokens > 0
            self._emit(outputs)
        if not is_real:
            self._core.execute_dummy()
        if lockstep.after_step(self._core.has_work) and self._rank == 0 and self._reporter is not None:
            self._reporter.wave_complete(lockstep.wave - 1)

    @property
    def _has_turn(self) -> bool:
        return self._core.has_work or (self._lockstep is not None and self._lockstep.is_running)

    def _take_messages(self) -> None:
        """All that are there; wait for one if there is nothing else to do."""
        is_waiting = not self._has_turn
        if is_waiting:
            self._report()  # that there is nothing to do
        try:
            while True:
                self._handle(self._inbox.get(block=is_waiting))
                is_waiting = False
        except Empty:
            return

    def _handle(self, message: Message) -> None:
        if isinstance(message, Shutdown):
            self._is_stopping = True
        elif isinstance(message, FrontEndLost):
            self._abort([i for i, front_end in self._front_end_of.items() if front_end == message.index])
            del self._num_requests[message.index], self._num_received[message.index]
            self._to_inform.discard(message.index)
            # What they know of the core has the requests that are gone.
            self._to_inform.update(self._num_requests)
            self._results.pop(message.index, None)
        elif isinstance(message, StartWave):
            if self._lockstep is not None:
                self._lockstep.on_start_wave(message.wave)
        elif message.kind is MessageKind.ADD:
            self._add(message.front_end, message.payload)  # type: ignore[arg-type]
        elif message.kind is MessageKind.ABORT:
            self._abort(message.payload)  # type: ignore[arg-type]
            if not self._core.has_work:
                self._to_inform.add(message.front_end)
        else:
            assert isinstance(message.payload, UtilityCall)
            result = self._call(message.payload)
            self._results.setdefault(message.front_end, []).append(result)

    def _add(self, front_end: int, requests: Iterable[EngineCoreRequest]) -> None:
        for request in requests:
            request.arrival_time += self._clock_offset
            self._front_end_of[request.request_id] = front_end
            self._num_requests[front_end] += 1
            self._num_received[front_end] += 1
            try:
                self._core.add_request(request)
            except ValueError as error:
                self._refused.append(EngineCoreOutput(request.request_id, [], "error", str(error)))

    def _abort(self, request_ids: Sequence[str]) -> None:
        self._core.abort_requests(request_ids)
        for request_id in request_ids:
            self._forget(request_id)

    def _forget(self, request_id: str) -> int | None:
        """Returns the front end that the request was of."""
        front_end = self._front_end_of.pop(request_id, None)
        if front_end is not None:
            self._num_requests[front_end] -= 1
        return front_end

    def _emit(self, outputs: EngineCoreOutputs) -> None:
        """Give every front end its own, and the core's state to all that have requests."""
        by_front_end: dict[int, list[EngineCoreOutput]] = {
            front_end: [] for front_end, number in self._num_requests.items() if number
        }
        for output in [*outputs.outputs, *self._refused]:
            output.scheduled_time -= self._clock_offset if output.scheduled_time else 0.0
            request_id = output.request_id
            front_end = self._front_end_of.get(request_id) if output.finish_reason is None else self._forget(request_id)
            if front_end is not None:
                by_front_end.setdefault(front_end, []).append(output)
        for front_end in self._to_inform | self._results.keys():
            by_front_end.setdefault(front_end, [])
        stats = outputs.stats
        for front_end, own in by_front_end.items():
            results, num_received = self._results.get(front_end, []), self._num_received[front_end]
            self._sink.put(front_end, EngineCoreOutputs(own, stats, self._rank, results, num_received))
            # The tokens of a step count once.
            stats = msgspec.structs.replace(stats, num_scheduled_tokens=0)
        self._refused = []
        self._results = {}
        self._to_inform = set()

    def _report(self) -> None:
        """Tell the coordinator how much there is to do."""
        if self._reporter is None:
            return
        wave, is_running = (
            (self._lockstep.wave, self._lockstep.is_running) if self._lockstep is not None else (0, False)
        )
        scheduler = self._core.scheduler
        self._reporter.report(scheduler.num_waiting, len(scheduler.running), wave, is_running)

    def _call(self, call: UtilityCall) -> UtilityResult:
        function = self.UTILITIES.get(call.name)
        if function is None:
            return UtilityResult(call.call_id, None, f"an engine core has no function {call.name}")
        try:
            return UtilityResult(call.call_id, function(self))
        except ValueError as error:
            return UtilityResult(call.call_id, None, str(error))

    def _reset_prefix_cache(self) -> bool:
        self._core.reset_prefix_cache()
        return True

    def _stats(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self._core.stats)

    def _start_profile(self) -> bool:
        if self._profile is not None:
            raise ValueError("a profile is being taken already; stop it first")
        self._profile = cProfile.Profile()
        self._profile.enable()
        return True

    def _stop_profile(self) -> str:
        """What took most time since the start of the profile, as text."""
        if self._profile is None:
            raise ValueError("no profile is being taken; start one first")
        self._profile.disable()
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(_PROFILE_LINES)
        self._profile = None
        return text.getvalue()

    UTILITIES: ClassVar[dict[str, "Callable[[EngineCoreProc], Any]"]] = {
        "reset_prefix_cache": _reset_prefix_cache,
        "stats": _stats,
        "start_profile": _start_profile,
        "stop_profile": _stop_profile,
    }


class _Start:
    """From the handshake to the busy loop."""

    def __init__(self, control: str, rank: int, epoch: int) -> None:
        self._rank, self._epoch = rank, epoch
        self._is_local = control.startswith("ipc:")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._control = self._context.socket(zmq.DEALER)
        self._control.setsockopt(zmq.IDENTITY, f"core-{rank}-{epoch}".encode())
        self._control.connect(control)

    def run(self, *, num_sharing: int, progress: bool) -> int:
        """Returns the exit status."""
        self._send(CoreHello(self._rank, self._epoch))
        welcome = msgspec.msgpack.decode(self._control.recv(), type=FromSupervisor)
        if isinstance(welcome, Shutdown):
            return 0
        assert isinstance(welcome, CoreWelcome)
        # Machines have clocks of their own. How long the answer travelled counts for nothing.
        offset = 0.0 if self._is_local else time.monotonic() - welcome.sent_at
        try:
            proc, source, info = self._make(welcome, offset, num_sharing, progress)
        except Exception as error:
            # Whatever it is, the supervisor must know; what is not the user's mistake is shown in full.
            if not isinstance(error, ValueError):
                logger.exception("the engine core cannot start")
            self._send(CoreFailed(self._rank, self._epoch, str(error) or described(error)))
            self._context.destroy(linger=5000)
            return 1
        ready = msgspec.msgpack.encode(CoreReady(self._rank, self._epoch, info))
        self._control.send(ready)
        source.start(ready)
        proc.run()
        return 0

    def _make(
        self, welcome: CoreWelcome, offset: float, num_sharing: int, progress: bool
    ) -> tuple[EngineCoreProc, CoreInput, CoreInfo]:
        addresses = welcome.addresses
        args = EngineArgs.create(**welcome.engine_args)
        core = ServedModel(args).make_core(progress=progress, num_sharing=num_sharing)
        lockstep = None
        if core.needs_lockstep and addresses.lockstep is not None:
            lockstep = LockstepLoop(LockstepGroup(self._rank, welcome.num_ranks, addresses.lockstep))
        reporter = None
        if addresses.coordinator_loads is not None:
            reporter = LoadReporter(self._rank, addresses.coordinator_loads)
            reporter.report(0, 0)
        source = CoreInput(self._context, self._rank, addresses, self._control)
        sink = CoreOutput(self._context, addresses.front_end_outputs)
        proc = EngineCoreProc(core, self._rank, source, sink, clock_offset=offset, reporter=reporter, lockstep=lockstep)
        info = CoreInfo(
            num_blocks=core.kv.pool.num_usable,
            block_size=args.cache.block_size,
            max_model_len=core.max_model_len,
            max_num_seqs=args.scheduler.max_num_seqs,
            description=core.description,
            needs_lockstep=lockstep is not None,
        )
        return proc, source, info

    def _send(self, message: CoreHello | CoreFailed) -> None:
        self._control.send(msgspec.msgpack.encode(message))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pelton.engine.core_proc", allow_abbrev=False)
    parser.add_argument("--control", required=True, help="address of the supervisor's control socket")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True, help="how often this rank was started before")
    parser.add_argument("--parent-fd", type=int, required=True, help="pipe that ends when the parent does")
    parser.add_argument("--runtime-dir", required=True, help="folder to remove when the parent ends")
    parser.add_argument("--num-sharing", type=int, required=True, help="cores that divide the memory among them")
    parser.add_argument("--cpus", type=_cpu_list, default=[], help="CPUs to run on, such as 0,1; all by default")
    parser.add_argument("--log-level", default="WARNING")
    parser.add_argument("--progress", action="store_true")
    options = parser.parse_args(arguments)
    watch_parent(options.parent_fd, options.runtime_dir)
    ignore_ending_signals()
    logging.basicConfig(format=f"engine core {options.rank}: %(message)s")
    logging.getLogger("pelton").setLevel(options.log_level)
    if options.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, options.cpus)
    start = _Start(options.control, options.rank, options.epoch)
    return start.run(num_sharing=options.num_sharing, progress=options.progress)


def _cpu_list(text: str) -> list[int]:
    return [int(cpu) for cpu in text.split(",")]


if __name__ == "__main__":
    # Threads of the sockets are daemons, and nothing is left to be saved.
    status = main()
    sys.stderr.flush()
    os._exit(status)
