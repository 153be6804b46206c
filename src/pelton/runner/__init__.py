"""Runs the model: the worker, its batch, and the programs it replays."""

from pelton.runner.worker import CPUWorker

__all__ = ["CPUWorker"]
