"""Rotary position embeddings and how their frequencies are scaled."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pelton.config import LinearScaling, Llama3Scaling, RopeConfig, TensorScaling, YarnScaling
from pelton.layers.parameter import Parameter
from pelton.ops import Recorder, Value
from pelton.ops.arrays import Float32

_SMALLEST_DIVISOR = 1e-20
"""Far below every honest one, and far from where a quotient overflows."""


class Rotation(NamedTuple):
    """The angles of a step's tokens."""

    cos: Value
    """[T, head_size / 2]."""
    sin: Value
    """[T, head_size / 2]."""


class Rotary:
    """One set of frequencies; layers that use it share the angles of a step."""

    def __init__(self, config: RopeConfig, head_size: int) -> None:
        self._config = config
        self._head_size = head_size
        self._divisors: Parameter | None = None
        if isinstance(config.scaling, TensorScaling):
            self._divisors = Parameter("rope_divisors", (head_size // 2,), self._check_divisors)

    def parameters(self) -> Iterator[Parameter]:
        if self._divisors is not None:
            yield self._divisors

    def __call__(self, op: Recorder, positions: Value) -> Rotation:
        """positions [T] -> cos and sin of their angles."""
        scaling = self._config.scaling
        factor = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
        return Rotation(*op.rotary(positions, self.frequencies(), factor))

    def frequencies(self) -> Float32:
        """[head_size / 2], in radians per position."""
        plain = _frequencies(self._config.theta, self._head_size)
        match self._config.scaling:
            case None:
                return plain
            case TensorScaling():
                assert self._divisors is not None
                return plain / self._divisors.array
            case LinearScaling(factor):
                return plain / np.float32(factor)
            case Llama3Scaling() as scaling:
                return _llama3(plain, scaling)
            case YarnScaling() as scaling:
                return _yarn(plain, scaling, self._config.theta)

    def _check_divisors(self) -> None:
        assert self._divisors is not None
        divisors = self._divisors.array
        if not np.isfinite(divisors).all() or (divisors < _SMALLEST_DIVISOR).any():
            raise ValueError(f"{self._divisors.name} must hold finite numbers above 0")


# All of this is float32, rounded where Hugging Face's code rounds: at far positions a more exact frequency would be
# a different one.


def _frequencies(theta: float, head_size: int) -> Float32:
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    # The power is rounded once from float64, which gives the bits of a float32 power.
    powers = (theta ** exponents.astype(np.float64)).astype(np.float32)
    return np.float32(1.0) / powers


def _llama3(plain: Float32, scaling: Llama3Scaling) -> Float32:
    """Blend by how often a dimension turns within the original context."""
    turns = np.float32(scaling.original_max_position_embeddings) / (np.float32(2.0 * math.pi) / plain)
    low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0).astype(np.float32)
    divided = plain / np.float32(scaling.factor)
    blended: Float32 = (np.float32(1.0) - kept) * divided + kept * plain
    return blended


def _yarn(plain: Float32, scaling: YarnScaling, theta: float) -> Float32:
    """Keep fast dimensions, interpolate slow ones, and go over linearly in between."""
    half = len(plain)

    def dimension(num_turns: float) -> float:
        """The dimension (of half a head) that turns so often within the original context."""
        return half * math.log(scaling.original_max_position_embeddings / (num_turns * 2.0 * math.pi)) / math.log(theta)

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)
    span = last - first if last != first else 0.001
    interpolated = np.clip((np.arange(half, dtype=np.float32) - np.float32(first)) / np.float32(span), 0.0, 1.0)
    kept = (np.float32(1.0) - interpolated).astype(np.float32)
    blended: Float32 = plain / np.float32(scaling.factor) * (np.float32(1.0) - kept) + plain * kept
    return blended
