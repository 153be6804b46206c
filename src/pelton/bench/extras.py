"""Libraries that only the extra `bench` installs."""

from importlib import import_module


def need(module: str, what: str) -> None:
    """Raise ValueError, with the remedy, if `module` is not installed; `what` is what needs it, a flag or a command."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(f"{what} needs {module}, which is not installed; run: pip install 'pelton[bench]'") from None
