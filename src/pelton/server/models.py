"""The names under which a model is served."""

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from uuid import uuid4

from pelton.error_text import shown
from pelton.server.errors import APIError
from pelton.server.responses import ModelCard, ModelList, ModelPermission


class ServedModels:
    """One model, under one or more names."""

    def __init__(
        self, names: Sequence[str], *, root: str, max_model_len: int, unlisted_names: Collection[str] = ()
    ) -> None:
        """`names`: the first one is in the responses. `root`: the model that the server has loaded. `unlisted_names`:
        taken in requests, and shown nowhere.

        Raises ValueError if there is no name, or an empty one.
        """
        if not names or not all(names):
            raise ValueError(f"served_model_name must hold names that are not empty, got {shown(list(names))}")
        self.names = tuple(dict.fromkeys(names))
        self.name = self.names[0]
        self._unlisted_names = frozenset(unlisted_names)
        created = int(time.time())
        self._cards = {
            name: ModelCard(
                id=name,
                created=created,
                root=root,
                max_model_len=max_model_len,
                permission=[ModelPermission(id=f"modelperm-{uuid4().hex}", created=created)],
            )
            for name in self.names
        }

    @classmethod
    def of(cls, model: str, names: Sequence[str], max_model_len: int) -> "ServedModels":
        """Of a model as the server was told to load it, under its own name if no others are given.

        That of a path is its last part, for clients need not know the server's folders; requests may have the path.
        """
        own = own_name(model)
        return cls(names or (own,), root=own, max_model_len=max_model_len, unlisted_names=() if names else (model,))

    def check(self, model: str | None) -> None:
        """Raise APIError if a request is for another model. Without a name, it is for this one."""
        if model and model not in self._unlisted_names:
            self.card(model)

    def cards(self) -> ModelList:
        return ModelList(data=list(self._cards.values()))

    def card(self, name: str) -> ModelCard:
        """Raises APIError for other names."""
        if name not in self._cards:
            raise APIError(
                404, f"The model {shown(name)} does not exist; /v1/models lists those that do.", param="model"
            )
        return self._cards[name]


def own_name(model: str) -> str:
    """What a model is called: the last part of a path, and aliases and hub ids as they are."""
    path = Path(model).expanduser()
    return path.absolute().name or model if path.exists() else model
