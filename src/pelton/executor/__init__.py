"""Drives the workers that run the model."""

from pelton.executor.base import Executor, Worker
from pelton.executor.registry import make_executor
from pelton.executor.uniproc import UniprocExecutor

__all__ = ["Executor", "UniprocExecutor", "Worker", "make_executor"]
