"""The names under which a model is served."""

import pytest

from pelton.server.errors import APIError
from pelton.server.models import ServedModels


def served(*names):
    return ServedModels(names, root="org/model", max_model_len=99)


def test_the_list() -> None:
    models = served("first", "second", "first").cards().model_dump()
    assert models["object"] == "list"
    assert [card["id"] for card in models["data"]] == ["first", "second"]
    for card in models["data"]:
        assert set(card) == {
            "id",
            "object",
            "created",
            "owned_by",
            "root",
            "parent",
            "max_model_len",
            "permission",
        }
        assert (card["object"], card["root"], card["parent"], card["max_model_len"]) == ("model", "org/model", None, 99)
        assert card["permission"][0]["object"] == "model_permission"


def test_one_of_them() -> None:
    models = served("first", "second")
    assert models.name == "first"
    assert models.names == ("first", "second")
    assert models.card("second").id == "second"
    for name in ("first", "second", None, ""):
        models.check(name)


@pytest.mark.parametrize("name", ["third", "First", "x" * 10_000, "a\nb"])
def test_others_do_not_exist(name) -> None:
    with pytest.raises(APIError) as raised:
        served("first").check(name)
    assert (raised.value.status, raised.value.error_type, raised.value.param) == (404, "NotFoundError", "model")
    assert len(raised.value.message) < 200
    assert raised.value.message.isprintable()


@pytest.mark.parametrize("names", [(), ("",), ("a", "")])
def test_names_are_not_empty(names) -> None:
    with pytest.raises(ValueError, match="served_model_name must hold names that are not empty"):
        served(*names)
