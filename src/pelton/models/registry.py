"""The architectures that Pelton runs."""

from importlib import import_module
from typing import Protocol

from pelton.config import DecoderConfig
from pelton.core.kv_spec import KVCacheSpec
from pelton.layers import Parameter
from pelton.models.batch import BatchInputs
from pelton.ops import KVCacheLayer, Recorder, Value

_MODELS = {"llama": ("pelton.models.llama", "LlamaModel")}
"""Architecture to module and class; imported when asked for."""


class Model(Protocol):
    """What every model offers; see `LlamaModel`."""

    config: DecoderConfig

    def parameters(self) -> dict[str, Parameter]: ...

    @property
    def kv_layers(self) -> list[KVCacheLayer]: ...

    def kv_specs(self) -> list[KVCacheSpec]: ...

    def forward(self, op: Recorder, batch: BatchInputs) -> Value: ...

    def head(self, op: Recorder, rows: Value) -> Value: ...


def create_model(config: DecoderConfig, *, block_size: int, max_model_len: int) -> Model:
    """The model of `config.architecture`, without weights. Raises ValueError for an unknown architecture."""
    if config.architecture not in _MODELS:
        known = ", ".join(sorted(_MODELS))
        raise ValueError(f"unknown architecture {config.architecture!r}; there are: {known}")
    module, name = _MODELS[config.architecture]
    model: Model = getattr(import_module(module), name)(config, block_size=block_size, max_model_len=max_model_len)
    return model
