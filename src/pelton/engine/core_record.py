"""What the supervisor knows of an engine core."""

from dataclasses import dataclass
from logging import getLogger

from pelton.core.control_messages import CoreDown, CoreInfo
from pelton.engine.errors import SEND_AGAIN

logger = getLogger(__name__)


@dataclass
class CoreRecord:
    """One rank, whichever process has it."""

    rank: int
    epoch: int = 0
    identity: bytes = b""
    """Of its control socket; empty until it has said hello."""
    info: CoreInfo | None = None
    """Of a core that is ready."""
    was_ready: bool = False
    """Whether it, or a core of this rank before it, was ever ready."""
    needs_lockstep: bool = False
    """Whether its steps wait for those of the other ranks, as far as is known."""
    own_words: str = ""
    """Why it cannot start, as it says itself."""
    failure: str = ""
    """Why the last one of this rank has ended."""
    is_final: bool = False
    """It has ended and is not started again."""

    def is_from_it(self, identity: bytes, epoch: int) -> bool:
        """Whether a message is of this core, not of one before it."""
        return identity == self.identity and epoch == self.epoch

    def note_hello(self, identity: bytes, epoch: int) -> None:
        self.identity, self.epoch = identity, epoch
        self.info, self.own_words = None, ""

    def note_ready(self, info: CoreInfo) -> None:
        self.info, self.was_ready = info, True
        self.needs_lockstep = info.needs_lockstep
        self.failure = ""

    def note_end(self, end: str) -> None:
        """It has ended, for good or not. Logs it, unless the core has never been ready: that ends the start."""
        if self.own_words:
            self.failure = self.own_words
        elif self.was_ready:
            self.failure = f"engine core {self.rank} ended unexpectedly ({end}){SEND_AGAIN}"
        else:
            self.failure = f"engine core {self.rank} ended before it was ready ({end})"
        if self.was_ready:
            reason = f"{end}: {self.own_words}" if self.own_words else end
            plan = " for good" if self.is_final else ", and is started again"
            logger.error("engine core %d has ended (%s)%s", self.rank, reason, plan)
        self.identity, self.info, self.own_words = b"", None, ""

    @property
    def down(self) -> CoreDown:
        return CoreDown(self.rank, self.epoch, self.failure, self.is_final, self.was_ready)
