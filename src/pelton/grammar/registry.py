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
    constraint in full.

    Raises ValueError if there is none: UnsupportedGrammarError with what each of them says, or with the remedy if one
    is not installed.
    """
    names = tuple(BACKENDS) if params.backend == "auto" else (params.backend,)
    messages: dict[str, None] = {}
    is_any_installed = False
    for name in names:  # no more of them are imported than needed
        backend = load_backend(name)
        if not backend.is_installed():
            continue
        is_any_installed = True
        try:
            backend.check(params)
        except UnsupportedGrammarError as error:
            messages[str(error)] = None
            continue
        return msgspec.structs.replace(params, backend=name)
    if not is_any_installed:
        raise ValueError(
            f"the backend {' or '.join(names)} is not installed; pip install {names[0]}"
            + ("" if params.backend == "auto" else ", or leave out backend")
        )
    raise UnsupportedGrammarError("; ".join(messages))
