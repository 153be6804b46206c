"""What came of one request of a benchmark over HTTP."""

from dataclasses import dataclass, field


@dataclass
class RequestResult:
    """Times are seconds; `start_time` and `due_time` count from the start of the run."""

    due_time: float
    """When it was to be sent, by the arrivals that were drawn."""
    start_time: float = 0.0
    """When it was sent."""
    ttft: float = 0.0
    """From sending to the first event with text or token ids; to the end of an answer that has neither."""
    itls: list[float] = field(default_factory=list)
    """Between one such event and the next."""
    e2el: float = 0.0
    """From sending to the event with the reason of the end, which has the last token as a rule; where none came, to the
    last event with text or token ids."""
    prompt_len: int = 0
    """Tokens, as the server counts, or else as the dataset or a tokenizer does; 0 if nobody does."""
    output_len: int = 0
    """Tokens, as the server counts; see `counted_by` of the report where it does not."""
    cached_len: int = 0
    """Tokens of the prompt that came from the server's prefix cache."""
    text: str = ""
    error: str = ""
    """Empty if the answer came whole."""
    seconds: float = 0.0
    """From sending until the exchange was over: the stream had ended, or had failed."""

    @property
    def success(self) -> bool:
        return not self.error

    @property
    def time_taken(self) -> float:
        """e2el of a whole answer; of another one, seconds from sending until it had failed."""
        return self.e2el if self.success else self.seconds

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first; 0 where there is only one."""
        return (self.e2el - self.ttft) / (self.output_len - 1) if self.output_len > 1 else 0.0
