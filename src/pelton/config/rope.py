"""Rotary position embeddings as a checkpoint's configuration describes them (Su et al. 2021, arXiv:2104.09864)."""

from dataclasses import dataclass

from pelton.config.options import check_positive


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every frequency is divided by `factor` (Chen et al. 2023, arXiv:2306.15595)."""

    factor: float

    def __post_init__(self) -> None:
        check_positive(self, "factor")


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths are divided by `factor`, short ones are kept, those between are blended (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        check_positive(self, "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor ({self.high_freq_factor}) must be above low_freq_factor ({self.low_freq_factor})"
            )


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071)."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    """Multiplies cosine and sine."""
    beta_fast: float = 32.0
    """Dimensions that turn more often than this over the original context are kept."""
    beta_slow: float = 1.0
    """Dimensions that turn less often than this are interpolated."""
    truncate: bool = True
    """Whether the bounds of the blended dimensions are rounded to whole ones."""

    def __post_init__(self) -> None:
        check_positive(self, "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow")
        if self.beta_fast <= self.beta_slow:
            raise ValueError(f"beta_fast ({self.beta_fast}) must be above beta_slow ({self.beta_slow})")


@dataclass(frozen=True)
class TensorScaling:
    """Every frequency is divided by its element of a tensor in the checkpoint, as GGUF files of Llama 3 have it."""


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | TensorScaling


@dataclass(frozen=True)
class RopeConfig:
    """Frequencies theta**(-2 i / head_size), perhaps scaled."""

    theta: float
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        check_positive(self, "theta")
        if self.theta <= 1.0:
            raise ValueError(f"the rotary base must be above 1, got {self.theta}")
