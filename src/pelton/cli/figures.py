"""What is said about speed after the answers."""

import time
from dataclasses import dataclass, field

from pelton.core.outputs import RequestOutput


@dataclass
class Figures:
    """Counts tokens of outputs, which bring what is new (`DELTA`) or come once (`FINAL_ONLY`)."""

    start: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_cut: int = 0
    """Outputs that ended for their length."""
    failures: list[str] = field(default_factory=list)
    """Messages of outputs that failed."""

    def add(self, output: RequestOutput) -> None:
        num_new = sum(len(completion.token_ids) for completion in output.outputs)
        self.num_output_tokens += num_new
        if num_new and self.first_token is None:
            self.first_token = time.perf_counter()
        for completion in output.outputs:
            self.num_cut += completion.finish_reason == "length"
            if completion.finish_reason == "error":
                self.failures.append(str(completion.stop_reason))
        if output.finished:
            self.num_prompt_tokens += len(output.prompt_token_ids)
            self.num_cached_tokens += output.num_cached_tokens

    def report(self) -> str:
        """For outputs that were shown as they grew."""
        seconds = time.perf_counter() - self.start
        first = seconds if self.first_token is None else self.first_token - self.start
        speed = f"first token after {first:.2f} s"
        if self.num_output_tokens > 1:
            speed += f", then {(self.num_output_tokens - 1) / max(seconds - first, 1e-9):.1f} tokens/s"
        return self._describe(seconds, speed)

    def report_batch(self) -> str:
        """For outputs that came once."""
        seconds = time.perf_counter() - self.start
        return self._describe(seconds, f"{self.num_output_tokens / max(seconds, 1e-9):.1f} output tokens/s")

    def _describe(self, seconds: float, speed: str) -> str:
        cut = f"; {self.num_cut} cut off by max_tokens or the context length" if self.num_cut else ""
        return (
            f"{self.num_prompt_tokens} prompt tokens ({self.num_cached_tokens} cached), "
            f"{self.num_output_tokens} output tokens in {seconds:.2f} s; {speed}{cut}"
        )
