"""Configuration: frozen dataclasses, one per concern."""

from pelton.config.cache import CacheConfig
from pelton.config.decoder import DecoderConfig
from pelton.config.engine_args import EngineArgs
from pelton.config.execution import ExecutionConfig
from pelton.config.model import ModelConfig
from pelton.config.rope import LinearScaling, Llama3Scaling, RopeConfig, RopeScaling, TensorScaling, YarnScaling
from pelton.config.sampling import SamplingConfig
from pelton.config.scheduler import SchedulerConfig
from pelton.config.serving import ParallelConfig, ServeConfig
from pelton.config.structured_outputs import StructuredOutputsArgs, StructuredOutputsConfig

__all__ = [
    "CacheConfig",
    "DecoderConfig",
    "EngineArgs",
    "ExecutionConfig",
    "LinearScaling",
    "Llama3Scaling",
    "ModelConfig",
    "ParallelConfig",
    "RopeConfig",
    "RopeScaling",
    "SamplingConfig",
    "SchedulerConfig",
    "ServeConfig",
    "StructuredOutputsArgs",
    "StructuredOutputsConfig",
    "TensorScaling",
    "YarnScaling",
]
