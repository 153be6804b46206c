"""What the synchronous and the asyncio front of the engine tell about their model."""

from collections.abc import Mapping, Sequence

from pelton.engine.input_processor import InputProcessor
from pelton.sampling_params import SamplingParams


class EngineFront:
    """An engine, to whoever has requests for it."""

    def __init__(self, input_processor: InputProcessor, generation_defaults: Mapping[str, float | int]) -> None:
        self.generation_defaults = dict(generation_defaults)
        """Sampling parameters that the model recommends, by their names; what is not here is as in `SamplingParams`."""
        self._input_processor = input_processor

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """Every token that ends a sequence or a turn."""
        return self._input_processor.eos_token_ids

    @property
    def max_model_len(self) -> int:
        """The longest request, prompt and output, in tokens."""
        return self._input_processor.max_model_len

    @property
    def vocab_size(self) -> int:
        """How many logits the model has; the tokenizer may know more tokens, or fewer."""
        return self._input_processor.vocab_size

    def default_sampling_params(self) -> SamplingParams:
        """A new copy of what requests without parameters get: the model's defaults where it has some."""
        return SamplingParams(**self.generation_defaults)  # type: ignore[arg-type]
