"""The text of one choice: what its parameters show, hide and wait for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.sampling_params import RequestOutputKind
from pelton.tokenizer import Tokenizer
from tests.support.played import EOS, TOKENIZER, Played, position
from tests.tokenizer.backends import BACKENDS

DELTA = RequestOutputKind.DELTA


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_without_detokenizing_there_is_no_text(monkeypatch, kind):
    for name in ("detokenizer", "token_text", "decode"):
        monkeypatch.setattr(TOKENIZER, name, None)
    played = Played(detokenize=False, output_kind=kind, logprobs=1, prompt_logprobs=0)
    played.step(prompt_logprobs=[position((3575, -1.0), 3)])
    played.step(7042, logprobs=[position((7042, -0.5), 1, (7042, -0.5))])
    played.step(EOS, finish_reason="stop", logprobs=[position((EOS, -0.5), 2, (7042, -0.25))])
    assert set(played.texts) == {""}
    assert [i for output in played.outputs for i in output.outputs[0].token_ids][-2:] == [7042, EOS]
    assert [entry.decoded_token for entry in played.last.logprobs[-1].values()] == [None, None]
    assert played.outputs[0].prompt_logprobs[1][3575].decoded_token is None


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize(
    ("params", "ids", "text"),
    [
        ({}, [7042, EOS, 30], " Paris"),
        ({"include_stop_str_in_output": True}, [7042, EOS, 30], " Paris."),
        ({"skip_special_tokens": False}, [7042, EOS, 30], " Paris<|im_end|>"),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, [7042, 30, EOS], " Paris.<|im_end|>"),
        ({"include_stop_str_in_output": True}, [7042, 30, EOS], " Paris."),
        ({"include_stop_str_in_output": True}, [EOS], ""),
        ({}, [EOS], ""),
    ],
)
def test_the_token_that_ends_a_request(kind, params, ids, text):
    played = Played(output_kind=kind, **params).play(ids, "stop")
    assert ("".join(played.texts) if kind is DELTA else played.last.text) == text


def test_an_included_stop_token_does_not_end_in_a_stop_string_before():
    """Its text is text, in which stop strings are looked for."""
    played = Played(include_stop_str_in_output=True, stop=["s."]).play([7042, 30], "stop", 30)
    assert (played.last.text, played.last.stop_reason) == (" Paris.", "s.")


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_every_stop_string_included(kind):
    text = "Die Turbine 🚀 wandelt, wandelt."
    ids = TOKENIZER.encode(text)
    for start in range(0, len(text), 3):
        for end in range(start + 1, min(start + 9, len(text)) + 1):
            stop = text[start:end]
            played = Played(output_kind=kind, stop=stop, include_stop_str_in_output=True).play(ids)
            shown = "".join(played.texts) if kind is DELTA else played.last.text
            assert shown == text[: text.index(stop)] + stop
            assert (played.last.finish_reason, played.last.stop_reason) == ("stop", stop)


def test_spaces_between_special_tokens():
    tokenizer = Tokenizer(BACKENDS["word piece"](), special_tokens={}, chat_template=None)
    ids = [tokenizer._backend.token_to_id(token) for token in ("<s>", "</s>", "the")]
    params = {"skip_special_tokens": False, "output_kind": DELTA}
    spaced = Played(tokenizer, **params).play(ids)
    assert "".join(spaced.texts) == "<s> </s> the"
    joined = Played(tokenizer, spaces_between_special_tokens=False, **params).play(ids)
    assert "".join(joined.texts) == "<s></s> the"


def cut_by(pieces, min_tokens, stop):
    """Text, stop string and number of tokens, by looking at the whole text after every token."""
    num_early = len("".join(pieces[:min_tokens]))
    for num_tokens in range(1, len(pieces) + 1):
        text = "".join(pieces[:num_tokens])
        found = [(at, s) for s in stop if (at := text.find(s, max(0, num_early - len(s) + 1))) >= 0]
        if found and num_tokens > min_tokens:
            at, string = min(found, key=lambda pair: (pair[0], stop.index(pair[1])))
            return text[:at], string, num_tokens
    return "".join(pieces), None, len(pieces)


ASCII = [TOKENIZER.encode(char)[0] for char in "ab"]
TOKENS = [*ASCII, *(TOKENIZER.encode(text)[0] for text in ("abab", "aa", "bb", "ba"))]


@settings(max_examples=300)
@given(
    ids=st.lists(st.sampled_from(TOKENS), min_size=1, max_size=8),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3, unique=True),
    min_tokens=st.integers(0, 8),
    kind=st.sampled_from(RequestOutputKind),
)
def test_stop_strings_before_the_minimum_are_text(ids, stop, min_tokens, kind):
    """One token at a time."""
    text, matched, num_tokens = cut_by([TOKENIZER.decode([i]) for i in ids], min_tokens, stop)
    played = Played(stop=stop, min_tokens=min_tokens, max_tokens=9, output_kind=kind).play(ids)
    shown = "".join(played.texts) if kind is DELTA else played.last.text
    assert (shown, played.last.stop_reason) == (text, matched)
    assert played.last.finish_reason == ("length" if matched is None else "stop")
    lengths = [len(output.outputs[0].token_ids) for output in played.outputs]
    assert (sum(lengths) if kind is DELTA else lengths[-1]) == num_tokens


@pytest.mark.parametrize(("min_tokens", "text", "matched"), [(0, " P", "ar"), (1, " Paris, P", "ar"), (3, None, None)])
def test_the_minimum_lies_within_a_step(min_tokens, text, matched):
    ids = [*TOKENIZER.encode(" Paris, Paris"), 30]
    assert len(ids) == 4
    played = Played(stop="ar", min_tokens=min_tokens)
    played.step(*ids, finish_reason="length")
    assert (played.last.text, played.last.stop_reason) == (text or " Paris, Paris.", matched)


def test_a_stop_string_may_begin_before_the_minimum():
    played = Played(stop="s.", min_tokens=1).play([7042, 30])
    assert (played.last.text, played.last.stop_reason) == (" Pari", "s.")
    assert Played(stop="s.", min_tokens=2).play([7042, 30]).last.text == " Paris."


@pytest.mark.parametrize(("min_tokens", "finish_reason"), [(2, "stop"), (3, "length")])
def test_a_character_that_the_minimum_cuts(min_tokens, finish_reason):
    """A character counts as text of the token that completes it."""
    rocket = TOKENIZER.encode("🚀")
    assert len(rocket) == 3
    played = Played(stop="🚀", min_tokens=min_tokens).play([*rocket, 30])
    assert played.last.finish_reason == finish_reason
    assert played.last.text == ("" if finish_reason == "stop" else "🚀.")


def test_text_that_the_detokenizer_holds_back_belongs_to_its_tokens():
    """A newline that is a byte token comes out with the token after it, and yet it came before the minimum."""
    tokenizer = Tokenizer(BACKENDS["llama"](), special_tokens={}, chat_template=None)
    newline = tokenizer._backend.token_to_id("<0x0A>")
    word = tokenizer.encode("the")[0]
    early = Played(tokenizer, stop="\n", min_tokens=2, output_kind=DELTA).play([word, newline, word])
    assert (early.texts[1], early.last.finish_reason) == ("", "length")
    assert "\n" in "".join(early.texts)
    late = Played(tokenizer, stop="\n", min_tokens=1, output_kind=DELTA).play([word, newline, word])
    assert late.last.stop_reason == "\n"


def test_the_end_before_the_minimum():
    played = Played(stop="Paris!", min_tokens=5, output_kind=DELTA)
    played.step(7042)
    played.step(EOS, finish_reason="stop")
    assert "".join(played.texts) == " Paris"
    rocket = TOKENIZER.encode("🚀")[0]
    cut = Played(stop="\N{REPLACEMENT CHARACTER}", min_tokens=5).play([rocket])
    assert (cut.last.finish_reason, cut.last.text) == ("length", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("finish_reason", "ends_with_stop"), [("error", False), ("abort", False), ("length", True), ("stop", True)]
)
def test_half_a_character_is_a_stop_string_only_at_an_end_of_its_own(finish_reason, ends_with_stop, include):
    """Not when somebody else ended the request."""
    replacement = "\N{REPLACEMENT CHARACTER}"
    played = Played(stop=replacement, include_stop_str_in_output=include, output_kind=DELTA)
    played.step(7042)
    played.step(TOKENIZER.encode("🚀")[0])
    last = [EOS] if finish_reason == "stop" else []
    played.step(*last, finish_reason=finish_reason, stop_reason="the model broke" if finish_reason == "error" else None)
    text = "".join(played.texts)
    if ends_with_stop:
        assert (played.last.finish_reason, played.last.stop_reason) == ("stop", replacement)
        assert text == " Paris" + (replacement if include else "")
    else:
        expected = "the model broke" if finish_reason == "error" else None
        assert (played.last.finish_reason, played.last.stop_reason) == (finish_reason, expected)
        assert text == " Paris" + replacement


def test_what_was_held_for_a_stop_string_comes_before_half_a_character():
    played = Played(stop="Paris!", output_kind=DELTA)
    played.step(7042)
    played.step(TOKENIZER.encode("🚀")[0])
    played.step(finish_reason="abort")
    assert "".join(played.texts) == " Paris\N{REPLACEMENT CHARACTER}"
