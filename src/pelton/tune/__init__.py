"""Looks for the settings of `pelton serve` that do a workload best within a service level."""
