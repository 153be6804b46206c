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


def test_of_a_path_only_the_last_part_is_shown(tmp_path, monkeypatch) -> None:
    (tmp_path / "secret" / "org").mkdir(parents=True)
    path = tmp_path / "secret" / "model.gguf"
    path.touch()
    monkeypatch.chdir(tmp_path / "secret")
    for given_path in (str(path), "model.gguf", "./model.gguf", "../secret/model.gguf"):
        models = ServedModels.of(given_path, (), 99)
        assert models.name == "model.gguf"
        assert "secret" not in models.cards().model_dump_json()
        for name in ("model.gguf", given_path, None):
            models.check(name)
    assert ServedModels.of(".", (), 99).name == "secret"
    assert ServedModels.of("org/model", (), 99).name == "org/model", "a hub id"


def test_names_that_were_given_go_before_the_models_own(tmp_path) -> None:
    models = ServedModels.of(str(tmp_path), ("first", "second"), 99)
    assert models.names == ("first", "second")
    assert models.card("first").root == tmp_path.name
    with pytest.raises(APIError):
        models.check(str(tmp_path))
