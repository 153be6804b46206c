"""Loading the user's own logits processors."""

import sys
from types import ModuleType

import pytest

from pelton.sampling.logits_processor import LogitsProcessor, load_logits_processors, make_logits_processors


class Mine(LogitsProcessor):
    def new_request(self, params):
        return None

    class Inner(LogitsProcessor):
        def new_request(self, params):
            return None


class Abstract(LogitsProcessor):
    pass


@pytest.fixture
def module(monkeypatch):
    """An importable module that holds the classes."""
    found = ModuleType("some_package.processors")
    found.Mine, found.Abstract, found.number = Mine, Abstract, 5
    monkeypatch.setitem(sys.modules, "some_package", ModuleType("some_package"))
    monkeypatch.setitem(sys.modules, "some_package.processors", found)
    return "some_package.processors"


def test_classes_and_names(module):
    assert load_logits_processors([]) == []
    assert load_logits_processors([Mine, f"{module}:Mine", f"{module}:Mine.Inner"]) == [Mine, Mine, Mine.Inner]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Mine", "must be named as package.module:Class"),
        (":Mine", "must be named as package.module:Class"),
        ("some_package.processors:", "must be named as package.module:Class"),
        ("no.such.module:Mine", "cannot be loaded: ModuleNotFoundError: .*PYTHONPATH=. is the current one"),
        ("some_package.processors:Nobody", "cannot be loaded: AttributeError"),
        ("some_package.processors:number", "must be a class derived from .*LogitsProcessor"),
        ("some_package.processors:Abstract", "lacks new_request"),
        (int, "must be a class derived from .*LogitsProcessor"),
    ],
)
def test_refused(module, name, words):
    with pytest.raises(ValueError, match=words) as caught:
        load_logits_processors([name])
    assert repr(name) in str(caught.value)


class Unmade(Mine):
    def __init__(self):
        raise OSError("no table")


def test_one_of_each_is_made(module):
    made = make_logits_processors([Mine, f"{module}:Mine"])
    assert [type(processor) for processor in made] == [Mine, Mine]
    with pytest.raises(ValueError, match=r"^logits processor Unmade cannot be made: OSError: no table$"):
        make_logits_processors([Mine, Unmade])
