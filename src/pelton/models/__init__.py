"""Models: architecture only, one file each."""

from pelton.models.batch import BatchInputs
from pelton.models.programs import record_backbone
from pelton.models.registry import Model, create_model

__all__ = ["BatchInputs", "Model", "create_model", "record_backbone"]
