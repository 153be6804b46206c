"""Configuration: frozen dataclasses, one per concern."""

from pelton.config.cache import CacheConfig
from pelton.config.decoder import DecoderConfig
from pelton.config.engine_args import EngineArgs
from pelton.config.model import ModelConfig
from pelton.config.scheduler import SchedulerConfig

__all__ = ["CacheConfig", "DecoderConfig", "EngineArgs", "ModelConfig", "SchedulerConfig"]
