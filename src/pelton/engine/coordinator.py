"""The process between data-parallel engine cores and front ends: it publishes loads, and starts waves of lockstep.

It holds nothing that the cores do not tell it again, so it may die and start anew at any time.
"""

import argparse
import logging
import math
import time
from collections.abc import Sequence
from typing import NoReturn

import msgspec
import zmq

from pelton.core.dp_messages import CoreLoad, LoadsPublished, StartWave, WaveComplete
from pelton.engine.load_reporter import REPEAT_INTERVAL
from pelton.engine.signals import ignore_ending_signals
from pelton.error_text import message_of
from pelton.parent_watch import watch_parent

logger = logging.getLogger(__name__)

PUBLISH_INTERVAL = 0.1
"""Seconds between two publications, at least."""
_LEARNING_TIME = 1.5 * REPEAT_INTERVAL
"""Seconds until every core with work must have reported."""
_MAX_MESSAGE_SIZE = 1 << 16

_encode = msgspec.msgpack.encode
_decode_report = msgspec.msgpack.Decoder(CoreLoad | WaveComplete).decode


class CoreStates:
    """What every core reported last."""

    def __init__(self, num_ranks: int) -> None:
        self._loads: list[CoreLoad | None] = [None] * num_ranks

    def update(self, report: CoreLoad | WaveComplete) -> StartWave | None:
        """Take a report, and return which wave all cores must be told to run. Raises ValueError on unknown ranks."""
        if isinstance(report, WaveComplete):
            self._loads = [_paused_after(report.wave, load) for load in self._loads]
            return None
        if report.rank >= len(self._loads):
            raise ValueError(f"there is no rank {report.rank} among {len(self._loads)}")
        self._loads[report.rank] = report
        return self._wave_to_start(report)

    @property
    def is_complete(self) -> bool:
        """Whether every core has reported."""
        return None not in self._loads

    def summary(self) -> LoadsPublished:
        known = [load for load in self._loads if load is not None]
        return LoadsPublished(
            [(load.num_waiting, load.num_running) if load is not None else (0, 0) for load in self._loads],
            wave=max((load.wave for load in known), default=0),
            is_running=any(load.is_running for load in known),
        )

    def _wave_to_start(self, report: CoreLoad) -> StartWave | None:
        """The wave that this core runs and others do not, as far as known; or the other way round."""
        if report.is_running:
            wave = report.wave
        else:
            running = [load.wave for load in self._loads if load is not None and load.is_running]
            wave = max(running, default=-1)
            if wave < report.wave:
                return None
        is_running_everywhere = all(load is not None and load.is_running and load.wave == wave for load in self._loads)
        return None if is_running_everywhere else StartWave(wave)


def _paused_after(wave: int, load: CoreLoad | None) -> CoreLoad | None:
    if load is None or load.wave > wave:
        return load
    return msgspec.structs.replace(load, wave=wave + 1, is_running=False)


class Coordinator:
    """The sockets around `CoreStates`."""

    def __init__(
        self, num_ranks: int, loads: Sequence[str], to_front_ends: Sequence[str], to_cores: Sequence[str]
    ) -> None:
        """Bind all addresses. Raises zmq.ZMQError if one of them cannot be bound."""
        self._states = CoreStates(num_ranks)
        self._published: LoadsPublished | None = None
        self._is_wanted = True
        """Whether to publish even if nothing has changed: somebody new listens."""
        self._earliest = time.monotonic() + _LEARNING_TIME
        """When the next publication may be, in seconds of the monotonic clock."""
        self._is_learning = True
        self._context = zmq.Context()
        self._loads = self._context.socket(zmq.PULL)
        self._loads.maxmsgsize = _MAX_MESSAGE_SIZE
        self._to_front_ends = self._context.socket(zmq.XPUB)
        self._to_front_ends.xpub_verbose = True  # tell of every subscriber, not only of the first
        self._to_cores = self._context.socket(zmq.PUB)
        for socket, addresses in (
            (self._loads, loads),
            (self._to_front_ends, to_front_ends),
            (self._to_cores, to_cores),
        ):
            for each in addresses:
                socket.bind(each)

    def run(self) -> NoReturn:
        """Work until somebody ends the process."""
        poller = zmq.Poller()
        for source in (self._loads, self._to_front_ends):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._milliseconds_to_publication()))
            if self._loads in ready:
                self._take_report(self._loads.recv_multipart())
            if self._to_front_ends in ready and self._to_front_ends.recv_multipart()[0].startswith(b"\x01"):
                self._is_wanted = True
            if self._milliseconds_to_publication() == 0:
                self._publish()

    def _take_report(self, frames: Sequence[bytes]) -> None:
        try:
            start = self._states.update(_decode_report(b"".join(frames)))
        except (ValueError, RecursionError) as error:  # msgspec's are such: the latter for deeply nested data
            logger.warning("dropped a malformed report of a core: %s", message_of(error))
            return
        if start is not None:
            self._to_cores.send(_encode(start))
        if self._is_learning and self._states.is_complete:
            self._earliest = time.monotonic()
            self._is_learning = False

    def _milliseconds_to_publication(self) -> int | None:
        """None if there is nothing to publish."""
        if not self._is_wanted and self._states.summary() == self._published:
            return None
        return max(0, math.ceil((self._earliest - time.monotonic()) * 1000))

    def _publish(self) -> None:
        self._published = self._states.summary()
        self._is_wanted = self._is_learning = False
        self._to_front_ends.send(_encode(self._published))
        self._earliest = time.monotonic() + PUBLISH_INTERVAL


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description="coordinates data-parallel engine cores", allow_abbrev=False)
    parser.add_argument("--num-ranks", type=int, required=True, help="number of data-parallel cores")
    parser.add_argument("--loads", nargs="+", required=True, help="addresses to bind for reports of the cores")
    parser.add_argument("--to-front-ends", nargs="+", required=True, help="addresses to bind for publishing loads")
    parser.add_argument("--to-cores", nargs="+", required=True, help="addresses to bind for starting waves")
    parser.add_argument("--parent-fd", type=int, help="read end of a pipe that ends when the parent does")
    parser.add_argument("--runtime-dir", help="folder to remove if the parent dies")
    arguments = parser.parse_args()
    ignore_ending_signals()
    if arguments.parent_fd is not None:
        watch_parent(arguments.parent_fd, arguments.runtime_dir)
    Coordinator(arguments.num_ranks, arguments.loads, arguments.to_front_ends, arguments.to_cores).run()


if __name__ == "__main__":
    main()
