"""The `pelton` command."""
