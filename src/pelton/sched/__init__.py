"""Decides what runs in a step."""

from pelton.sched.scheduler import Scheduler, error_output

__all__ = ["Scheduler", "error_output"]
