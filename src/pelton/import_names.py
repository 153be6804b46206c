"""Classes of the user's own, by name."""

from importlib import import_module
from typing import Any

from pelton.error_text import described, shown


def load_class(given: str | type[Any], base: type[Any], what: str) -> type[Any]:
    """A class derived from `base`, or its name `package.module:Class` -> the class.

    Raises ValueError, with `what` before the name, for what cannot be imported, is not derived, or lacks methods.
    """
    found = _import(given, what) if isinstance(given, str) else given
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{what} {shown(given)} must be a class derived from {base.__module__}.{base.__qualname__}")
    missing: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
    if missing:
        raise ValueError(f"{what} {shown(given)} lacks {', '.join(sorted(missing))}")
    return found


def _import(name: str, what: str) -> Any:
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise ValueError(f"{what} {shown(name)} must be named as package.module:Class")
    try:
        found: Any = import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module does while it is imported
        remedy = ""
        if isinstance(error, ModuleNotFoundError):
            remedy = "; PYTHONPATH must have the folder of the module (PYTHONPATH=. is the current one)"
        raise ValueError(f"{what} {shown(name)} cannot be loaded: {described(error)}{remedy}") from error
    return found


def class_name(given: str | type[Any], what: str) -> str:
    """The name by which `load_class` finds a class, in any process.

    Raises ValueError, with `what` before the class, for one that only this process knows.
    """
    if isinstance(given, str):
        return given
    module, name = given.__module__, given.__qualname__
    if module == "__main__" or "<" in name:
        raise ValueError(
            f"{what} {shown(given)} is known to this process only, but the engine core runs in another one; put the "
            "class into a module of its own, and give its name as package.module:Class"
        )
    return f"{module}:{name}"
