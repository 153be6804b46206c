"""Loading the user's own logits processors."""

import sys
from types import ModuleType

import pytest

from pelton.error_text import shown
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
    assert shown(name) in str(caught.value)


class Unmade(Mine):
    def __init__(self):
        raise OSError("no table")


def test_one_of_each_is_made(module):
    made = make_logits_processors([Mine, f"{module}:Mine"])
    assert [type(processor) for processor in made] == [Mine, Mine]
    with pytest.raises(ValueError, match=r"^logits processor Unmade cannot be made: OSError: no table$"):
        make_logits_processors([Mine, Unmade])


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no message")


class Failing:
    """In place of a module: whatever is asked of it fails."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, name):
        raise self.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SilentError(), "SilentError"),
        (OSError("a\nb\ud800"), "OSError: a b"),
        (OSError("x" * 10**6), "OSError: x{300}[.]{3}"),
    ],
    ids=["silent", "lines", "long"],
)
def test_exceptions_of_any_kind(monkeypatch, error, words):
    class Unmade(Mine):
        def __init__(self):
            raise error

    with pytest.raises(ValueError, match=f"^logits processor Unmade cannot be made: {words}$"):
        make_logits_processors([Unmade])
    monkeypatch.setitem(sys.modules, "failing_module", Failing(error))
    with pytest.raises(ValueError, match=f"^logits processor 'failing_module:Mine' cannot be loaded: {words}$"):
        load_logits_processors(["failing_module:Mine"])


@pytest.mark.parametrize(
    "names", ["boost", b"boost", None, 5, ["boost", 5], iter(["boost"])], ids=lambda names: type(names).__name__
)
def test_arguments_that_are_no_names(names):
    wrong = type("Wrong", (Mine,), {"arguments": names})
    with pytest.raises(ValueError, match=r"Wrong'> must have a set of names \(strings\) as arguments, got ") as caught:
        load_logits_processors([wrong])
    assert shown(names) in str(caught.value)


@pytest.mark.parametrize("names", [frozenset(), ("boost",), ["boost"], {"boost": 1}], ids=repr)
def test_arguments_in_any_collection(names):
    right = type("Right", (Mine,), {"arguments": names})
    assert load_logits_processors([right]) == [right]
