"""Drives the workers that run the model."""

from pelton.executor.base import Executor
from pelton.executor.uniproc import UniprocExecutor

__all__ = ["Executor", "UniprocExecutor"]
