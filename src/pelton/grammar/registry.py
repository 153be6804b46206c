"""The grammar backends, and which of them keeps a constraint."""

from importlib import import_module
from typing import cast

import msgspec

from pelton.grammar.backend import GrammarBackend, UnsupportedGrammarError
from pelton.structured_outputs_params import StructuredOutputsParams

BACKENDS: dict[str, str] = {
    "llguidance": "pelton.grammar.llguidance_backend:LLGuidanceBackend",
    "xgrammar": "pelton.grammar.xgrammar_backend:XgrammarBackend",
}
"""Module and class by name, in order of preference."""


def load_backend(name: str) -> type[GrammarBackend]:
    """Its class; the library behind it is imported when it is needed."""
    module, class_name = BACKENDS[name].split(":")
    return cast(type[GrammarBackend], getattr(import_module(module), class_name))


def resolve(params: StructuredOutputsParams) -> StructuredOutputsParams:
    """A copy whose `backend` is a real one: the one asked for, or for `auto` the first installed one that keeps the
    constraint in full. If it does not say whether objects are closed, they are, unless none can keep it then.

    Raises ValueError if there is none: UnsupportedGrammarError with what each of them says, or with the remedy if one
    is not installed.
    """
    check_installed(params.backend)
    if params.disable_additional_properties is None:
        try:
            return _resolve(msgspec.structs.replace(params, disable_additional_properties=True))
        except UnsupportedGrammarError:
            params = msgspec.structs.replace(params, disable_additional_properties=False)
    return _resolve(params)


def _resolve(params: StructuredOutputsParams) -> StructuredOutputsParams:
    messages: dict[str, None] = {}
    for name in _names(params.backend):  # no more of them are imported than needed
        backend = load_backend(name)
        if not backend.is_installed():
            continue
        try:
            backend.check(params)
        except UnsupportedGrammarError as error:
            messages[str(error)] = None
            continue
        return msgspec.structs.replace(params, backend=name)
    raise UnsupportedGrammarError("; ".join(messages))


def check_installed(name: str) -> None:
    """Raise ValueError if this backend, or with auto any, is not installed."""
    names = _names(name)
    if not any(load_backend(one).is_installed() for one in names):
        remedy = (
            "pip install llguidance" if name != "xgrammar" else "pip install 'pelton[xgrammar]', or leave out backend"
        )
        raise ValueError(f"the backend {' or '.join(names)} is not installed; {remedy}")


def _names(name: str) -> tuple[str, ...]:
    return tuple(BACKENDS) if name == "auto" else (name,)
