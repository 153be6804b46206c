"""Decides what runs in a step."""

from pelton.sched.scheduler import Scheduler

__all__ = ["Scheduler"]
