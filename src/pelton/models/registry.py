"""The architectures that Pelton runs."""

from importlib import import_module
from typing import Protocol

from pelton.config import DecoderConfig
from pelton.core.kv_spec import KVCacheSpec
from pelton.layers import Parameter, Target
from pelton.models.batch import BatchInputs
from pelton.ops import KVCacheLayer, Recorder, Value

_MODELS = {
    "gemma3": "pelton.models.gemma3",
    "llama": "pelton.models.llama",
    "qwen2": "pelton.models.qwen2",
    "qwen3": "pelton.models.qwen3",
}
"""Architecture -> module, imported when asked for; its function of the same name builds the model."""


class Model(Protocol):
    """What every model offers; see `Decoder`."""

    config: DecoderConfig
    activation_dtype: str

    def parameters(self) -> dict[str, Parameter]: ...

    @property
    def kv_layers(self) -> list[KVCacheLayer]: ...

    def kv_specs(self) -> list[KVCacheSpec]: ...

    def forward(self, op: Recorder, batch: BatchInputs) -> Value: ...

    def head(self, op: Recorder, rows: Value, is_wanted: Value) -> tuple[Value, Value]: ...


def create_model(config: DecoderConfig, target: Target) -> Model:
    """The model of `config.architecture`, without weights. Raises ValueError for an unknown architecture."""
    name = config.architecture
    if name not in _MODELS:
        raise ValueError(f"unknown architecture {name!r}; there are: {', '.join(sorted(_MODELS))}")
    model: Model = getattr(import_module(_MODELS[name]), name)(config, target)
    return model
