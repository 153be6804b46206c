"""Data-parallel engine cores that step in lockstep.

A model whose layers talk across ranks blocks in every step until all ranks step. So while any rank has work, all of
them step, those without work with dummy steps. Such a period is a wave; between waves all ranks are paused.
"""

import time

import msgspec
import zmq

from pelton.core.dp_messages import LockstepVerdict, LockstepVote
from pelton.error_text import message_of

SYNC_INTERVAL = 16
"""Steps between two agreements: rare, for each is a round trip between the ranks; and a wave that could end goes on
for fewer dummy steps than two intervals."""
_RANK_BYTES = 2
_MAX_MESSAGE_SIZE = 1 << 16

_encode = msgspec.msgpack.encode
_decode_vote = msgspec.msgpack.Decoder(LockstepVote).decode
_decode_verdict = msgspec.msgpack.Decoder(LockstepVerdict).decode


class LockstepError(RuntimeError):
    """The ranks cannot agree any more. The group is of no use: all its ranks must start anew, at another address."""


class LockstepGroup:
    """The ranks that step in lockstep. All of them vote in every round, and rank 0 counts. For one thread."""

    def __init__(self, rank: int, size: int, address: str, timeout: float = 60.0) -> None:
        """Rank 0 binds the address, empty if ranks run on other machines. `timeout` is in seconds, and longer than
        `SYNC_INTERVAL` steps may take.

        Raises ValueError for ranks that cannot be in one group.
        """
        if size > 1 and not address:
            raise ValueError(
                "data_parallel_size_local is less than data_parallel_size, but models whose ranks step together must "
                "run on one machine; start all ranks there"
            )
        if not 0 <= rank < size <= 1 << 8 * _RANK_BYTES:
            raise ValueError(f"rank {rank} of a lockstep group of {size} ranks does not exist")
        self.rank = rank
        self.size = size
        self._timeout = timeout
        self._round = 0
        self._context = zmq.Context()
        self._socket = self._open(address) if size > 1 else None

    def any_unfinished(self, mine: bool) -> bool:
        """Whether any rank has unfinished work. Waits until all have been asked in this round.

        Raises LockstepError if some rank does not answer in time, is in another round, or is gone.
        """
        if self._socket is None:
            return mine
        verdict = self._count_votes(self._socket, mine) if self.rank == 0 else self._vote(self._socket, mine)
        if verdict.error:
            raise LockstepError(verdict.error)
        self._round += 1
        return verdict.any_unfinished

    def close(self) -> None:
        if self._socket is not None:
            # What rank 0 said last, others still wait for.
            self._socket.close(linger=1000)
        self._context.term()

    def _open(self, address: str) -> zmq.Socket[bytes]:
        if self.rank == 0:
            router = self._context.socket(zmq.ROUTER)
            router.router_mandatory = True
            router.maxmsgsize = _MAX_MESSAGE_SIZE
            router.router_handover = True  # a rank that lost its connection comes back under its name
            router.bind(address)
            return router
        dealer = self._context.socket(zmq.DEALER)
        dealer.routing_id = self.rank.to_bytes(_RANK_BYTES, "little")
        dealer.connect(address)
        return dealer

    def _vote(self, socket: zmq.Socket[bytes], mine: bool) -> LockstepVerdict:
        socket.send(_encode(LockstepVote(self._round, mine)))
        if not socket.poll(int(self._timeout * 1000)):
            return self._failed(f"rank 0 did not answer rank {self.rank} within {self._timeout:g} s")
        try:
            verdict = _decode_verdict(socket.recv())
        except msgspec.MsgspecError as error:
            return self._failed(f"rank 0 sent what is no verdict ({message_of(error)})")
        if verdict.round_number != self._round and not verdict.error:
            return self._failed(f"rank 0 answered rank {self.rank} for round {verdict.round_number}")
        return verdict

    def _count_votes(self, socket: zmq.Socket[bytes], mine: bool) -> LockstepVerdict:
        missing = set(range(1, self.size))
        error = ""
        any_unfinished = mine
        deadline = time.monotonic() + self._timeout
        while missing and not error:
            if not socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
                ranks = ", ".join(map(str, sorted(missing)))
                error = f"of its {self.size} ranks, these did not take part within {self._timeout:g} s: {ranks}"
                break
            name, *frames = socket.recv_multipart()
            rank = int.from_bytes(name, "little")
            try:
                vote = _decode_vote(b"".join(frames))
            except msgspec.MsgspecError as problem:
                error = f"rank {rank} sent what is no vote ({message_of(problem)})"
                break
            if rank not in missing:
                error = f"rank {rank} voted, which is unknown or has voted already"
            elif vote.round_number != self._round:
                error = f"rank {rank} is in round {vote.round_number}"
            missing.discard(rank)
            any_unfinished |= vote.has_unfinished
        verdict = self._failed(error) if error else LockstepVerdict(self._round, any_unfinished)
        return self._announce(socket, verdict)

    def _announce(self, socket: zmq.Socket[bytes], verdict: LockstepVerdict) -> LockstepVerdict:
        """Tell all ranks, also those that have not voted. Returns a failure if one of them is gone."""
        gone = []
        for rank in range(1, self.size):
            try:
                socket.send_multipart([rank.to_bytes(_RANK_BYTES, "little"), _encode(verdict)])
            except zmq.ZMQError:
                gone.append(rank)
        if gone and not verdict.error:
            return self._failed(f"of its {self.size} ranks, these are gone: {', '.join(map(str, gone))}")
        return verdict

    def _failed(self, reason: str) -> LockstepVerdict:
        return LockstepVerdict(self._round, True, f"the lockstep group failed in round {self._round}: {reason}")


class LockstepLoop:
    """Where one core stands in the waves.

    The core steps once per turn, really or as a dummy, while `is_running`, and waits for messages otherwise. Steps
    count from the beginning of the wave on every rank, so a rank that starts late catches up with the others, who
    wait for it.
    """

    def __init__(self, group: LockstepGroup) -> None:
        self.wave = 0
        """The wave that runs, or will run next."""
        self.is_running = False
        self.num_steps = 0
        """Steps in this wave."""
        self._group = group

    def note_request(self) -> None:
        """Run, for there is work."""
        self.is_running = True

    def on_start_wave(self, wave: int) -> None:
        """Run this wave, as another rank does, unless it is over. It may come late, and more than once."""
        # No rank can run a later one: that takes an agreement, after which this rank is there too.
        if wave == self.wave:
            self.is_running = True

    def after_step(self, has_unfinished: bool) -> bool:
        """Count a step, at times agree with the other ranks, and return whether that ended the wave.

        `wave` is the next one then. Raises LockstepError.
        """
        self.num_steps += 1
        if self.num_steps % SYNC_INTERVAL or self._group.any_unfinished(has_unfinished):
            return False
        self.wave += 1
        self.num_steps = 0
        self.is_running = False
        return True
