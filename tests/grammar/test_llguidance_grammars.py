"""Regular expressions, grammars in Lark's notation and in GBNF, and structural tags, for llguidance."""

import pytest

from pelton.grammar.backend import UnsupportedGrammarError
from pelton.grammar.llguidance_backend import LLGuidanceBackend
from pelton.structured_outputs_params import StructuredOutputsParams
from tests.grammar.random_generation import accepts, mask_of
from tests.grammar.small_vocabularies import BYTES, PIECES

BACKEND = LLGuidanceBackend(BYTES)
_OBJECT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


def _check(good, bad, **fields):
    params = StructuredOutputsParams(**fields)
    BACKEND.check(params)
    grammar = BACKEND.compile(params)
    for text in good:
        assert accepts(grammar, BYTES, BYTES.encode(text)), text
    for text in bad:
        assert not accepts(grammar, BYTES, BYTES.encode(text)), text


def _refused(message, **fields):
    with pytest.raises(UnsupportedGrammarError, match=message) as caught:
        BACKEND.check(StructuredOutputsParams(**fields))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("a|b", ["a", "b"], ["", "ab"]),
        ("", [], []),
        ("(?:ab)+?c*", ["ab", "ababcc"], ["c"]),
        ("(?P<x>a)(?<y>b)", ["ab"], ["a"]),
        ("a{2}b{1,}c{0,2}", ["aab", "aabbcc"], ["ab", "aabccc"]),
        (r"\d\w\s", ["1_ ", "0a\t"], ["٣a ", "1é "]),
        (r"\D\W\S", ["a-b"], ["1-b", "٣-b", "aéb", "a- "]),
        (r"[^\d\n-]", ["a", "é"], ["1", "\n", "-", "٣"]),
        (r"[a\-z\]\\]", ["a", "-", "]", "\\"], ["b"]),
        (r"\x41\u00e9\u{1F600}\ud83d\ude00", ["Aé😀😀"], ["Aé😀"]),
        (r"\p{Lu}\P{L}", ["É1"], ["é1", "Éa"]),
        (r"\.\/\n\t\cA", ["./\n\t\x01"], []),
        (".", ["é", "\r"], ["\n", ""]),
        ("^a$|^b", ["a", "b"], ["ab"]),
        (r"[\s\S]", ["\n", "😀"], ["ab"]),
        ("[.*+?(){}|^$]", ["$", "("], ["a"]),
    ],
)
def test_regexes(pattern, good, bad):
    if pattern:
        _check(good, bad, regex=pattern)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(?=b)", "look-around at character 1"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "a back-reference"),
        (r"\k<a>", "a back-reference"),
        (r"a\b", r"the assertion \\b"),
        (r"\Aa", r"the assertion \\A"),
        ("(?i)a", r"a group that begins with \(\?i"),
        ("(?>a)", "a group that begins with"),
        ("a++", "a possessive repetition"),
        ("a**", "a repetition of a repetition"),
        ("*a", r"a \* that repeats nothing"),
        ("a{,3}", "a repetition that is not"),
        ("a{3,2}", "a repetition from 3 to 2"),
        ("a{1000000}", "a repetition of more than"),
        ("a$b", "an anchor that is not at an end"),
        ("(^a)*", "an anchor"),
        ("a)", r"an unmatched \)"),
        ("[a", r"no closing \] for the \["),
        ("[]", r"a \] at the beginning of a class"),
        ("[[:alpha:]]", "a class with a POSIX name"),
        ("[a&&b]", "the operator &&"),
        ("[z-a]", "a range whose ends"),
        (r"[\d-z]", "a range whose ends"),
        (r"\q", r"the escape \\q"),
        (r"\x4", "an incomplete escape"),
        (r"\ud800", "an escape that is no character"),
        (r"\p{Greek}", "the property 'Greek'"),
        ("a\\", r"a \\ with nothing behind it"),
        ("(" * 60 + "a" + ")" * 60, "a group within more than"),
    ],
)
def test_regexes_that_are_refused(pattern, message):
    _refused(f"^regex: .*{message}", regex=pattern)


def test_lark():
    _check(["1+2", "(1+2)*3"], ["1+", ")"], grammar='start: e\ne: t ("+" t)*\nt: f ("*" f)*\nf: /[0-9]+/ | "(" e ")"')
    _check(['<f>{"x":1}</f>'], ['<f>{"x":"a"}</f>'], grammar=f'start: "<f>" o "</f>"\no: %json {_text(_OBJECT)}')
    _check(["%json {}"], [], grammar='// start %json {"uniqueItems": true}\nstart: "%json {}" # %json')
    _check(["a"], ["b"], grammar='%llguidance {}\nstart: "a"')


def test_lark_that_is_refused():
    _refused("uniqueItems at /uniqueItems", grammar='start: %json {"uniqueItems": true}')
    _refused("there is no JSON where it must be", grammar='start: %json {"type": }')
    _refused("an option that is not supported", grammar='%llguidance {"allow_invalid_utf8": true}\nstart: "a"')
    _refused("'temperature' is an attribute", grammar='start: x\nx[temperature=0.5]: "a"')
    _refused("'suffix' is an attribute", grammar='start: x\nx[suffix="y", max_tokens=3]: /[a-z]{30}/')
    _refused("'capture' is an attribute", grammar='start: x\nx[lazy, capture="y"]: "a"')
    for token in ("<[5]>", "<[^5]>", "<[*]>", "<s>", "<|im_end|>"):
        _refused("is a special token", grammar=f"start: {token}")
    _check(["<s>"], [], grammar='start: "<s>"')
    _refused("no rule start", grammar='begin: "a"')
    _refused("llguidance cannot keep it", grammar="start: x")


@pytest.mark.parametrize("chain", ['r{0}: "a" r{1} | "b"', 'R{0}: "a" R{1} | "b"', 'r{0}: ("c" | ("a" r{1})) | "b"'])
def test_long_chains_of_rules_are_refused_not_a_stack_overflow(chain):
    rules = "\n".join(chain.format(number, number + 1) for number in range(5_000))
    grammar = f'start: {chain[0]}0\n{rules}\n{chain[0]}5000: "a"'
    _refused("rules and brackets within each other", grammar=grammar)
    _refused("rules and brackets within each other", grammar=f"{grammar}\n// start: ok")


@pytest.mark.parametrize(
    ("grammar", "is_finite"),
    [
        ('start: "a" start', False),
        ('start: "a" start | x\nx: "b" x', False),
        ('start: "a" start?', True),
        ('start: ("a" start)* "b"', True),
        ('start: "a" [start]', True),
        ('start: "a" start~0..2', True),
        ('start: "a" start{0,2}', True),
        ('start: "a" start{1,2}', False),
        ('start: "| start:" start // | "b"', False),
        ('start: x\n  | "a" start -> again\nx: start "b"\n  | /x:/', True),
    ],
)
def test_lark_without_a_finite_text(grammar, is_finite):
    if is_finite:
        BACKEND.check(StructuredOutputsParams(grammar=grammar))
    else:
        _refused("no finite output", grammar=grammar)


def test_schemas_within_lark_cannot_be_made_lenient():
    _check(['"a"'], ["1"], grammar='start: %json {"type": "string", "x-guidance": {"lenient": true}}')


def test_gbnf():
    _check(["", "ab", "aabb"], ["a", "abab"], grammar='root ::= "a" root "b" | ""')
    _check(["é-é", "x\n"], ["é"], grammar='root ::= [é] "-" "\\u00e9" | x-y\nx-y ::= "\\x78" [\\n] # end')
    _check(["()", "(()())"], ["(", ")("], grammar='root ::= "(" root* ")"')
    _check(
        ["[1, 22,[]]"],
        ["[1", "[01x]"],
        grammar='root ::= "[" ws (value ("," ws value)*)? "]"\nvalue ::= [0-9]+ ws | root\nws ::= [ \\t]*',
    )
    _check(["aab"], ["ab", "aaab"], grammar='root ::= "a"{2} "b"')


def test_gbnf_that_is_refused():
    _refused("no rule root", grammar='start ::= "a"')
    _refused("there is no rule 'x'", grammar="root ::= x")
    _refused("no finite output", grammar='root ::= root "a"')


def _text(schema):
    return str(schema).replace("'", '"').replace("False", "false")


_FUNCTIONS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": _OBJECT, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "array"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def test_structural_tags_of_the_older_form():
    _check(
        ["", "free <b> text", '<f=a>{"x": 1}</f>', 'é <f=b>[]</f> then <f=a>{"x":2}</f>\n', "<f", "<<f=b>[1]</f>"],
        ["<f=", "<f=c>", '<f=a>{"x":"1"}</f>', "<f=b>{}</f>", "<f=b>[]", "<f=b>[]</f", "<f=a>[]</f>"],
        structural_tag=_FUNCTIONS,
    )


def _format(**fields):
    return {"structural_tag": {"type": "structural_tag", "format": fields}}


_TAG = {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</a>"}


def test_structural_tags_of_the_newer_form():
    _check(["<a>12</a>"], ["<a></a>", "<a>1</a> "], **_format(**_TAG))
    _check(
        ["Ax", "A12 b\n"],
        ["A", "B"],
        **_format(
            type="sequence",
            elements=[
                {"type": "const_string", "value": "A"},
                {
                    "type": "or",
                    "elements": [
                        {"type": "regex", "pattern": "x+"},
                        {"type": "json_schema", "json_schema": {"type": "integer"}},
                    ],
                },
                {"type": "any_text"},
            ],
        ),
    )
    _check(["<a>any <b> text</a>"], ["<a>x</a>y</a>", "<a>"], **_format(**(_TAG | {"content": {"type": "any_text"}})))
    tags = {"type": "triggered_tags", "triggers": ["<a"], "tags": [_TAG]}
    _check(["x<a>1</a>y", "", "x"], ["<a"], **_format(**tags))
    _check(["<a>1</a>y<a>2</a>", "<a>1</a>"], ["", "x", "x<a>1</a>"], **_format(**tags, at_least_one=True))
    _check(["<a>1</a>"], ["", "x", "<a>1</a>y"], **_format(**tags, at_least_one=True, stop_after_first=True))
    _check(["x<a>1</a>", "x"], ["<a>1</a>y"], **_format(**tags, stop_after_first=True))
    separated = {"type": "tags_with_separator", "separator": ";", "tags": [_TAG]}
    _check(["", "<a>1</a>", "<a>1</a>;<a>2</a>"], ["<a>1</a>;", ";"], **_format(**separated))
    _check(["<a>1</a>;<a>2</a>"], [""], **_format(**separated, at_least_one=True))
    _check(["", "<a>1</a>"], ["<a>1</a>;<a>2</a>"], **_format(**separated, stop_after_first=True))


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ({"type": "other"}, "type must be structural_tag"),
        ({"structures": [], "triggers": ["<"]}, "structures at the top must be a list"),
        (_FUNCTIONS | {"triggers": ["<g"]}, "begin at /structures/0 must begin with one of the triggers"),
        (_FUNCTIONS | {"triggers": ["<f=", "x"]}, "with which no tag begins"),
        (_FUNCTIONS | {"triggers": ["<f=", "<f=a"]}, "another one that holds it"),
        (_FUNCTIONS | {"extra": 1}, "'extra' at the top is not supported"),
        (
            _FUNCTIONS | {"structures": [{"begin": "<f=a", "schema": {"uniqueItems": True}, "end": ""}]},
            "in the schema at /structures/0/.*uniqueItems",
        ),
        ({"format": {"type": "qwen_xml_parameter"}}, "type at /format must be one of"),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}, "style at /format must be json"),
        (
            {"format": {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}},
            "only be kept at the end",
        ),
        ({"format": {"type": "regex", "pattern": "(?=a)"}}, "the pattern at /format: look-around"),
    ],
)
def test_structural_tags_that_are_refused(tag, message):
    _refused(f"^structural_tag: .*{message}", structural_tag={"type": "structural_tag"} | tag)


def test_tags_that_are_special_tokens():
    tag = _FUNCTIONS | {"triggers": ["<s>"], "structures": [{"begin": "<s>", "schema": {"const": 1}, "end": "</s>"}]}
    grammar = LLGuidanceBackend(PIECES).compile(StructuredOutputsParams(structural_tag=tag))
    for token_ids in (
        [0, *PIECES.encode("1"), 1],
        PIECES.encode("<s>1</s>"),
        [*PIECES.encode("a"), 0, *PIECES.encode("1"), 1],
    ):
        matcher = grammar.new_matcher()
        assert all(matcher.accept(token_id) for token_id in token_ids)
        assert matcher.is_accepting
    matcher = grammar.new_matcher()
    assert mask_of(matcher, PIECES.vocab_size)[0] & 1
    assert matcher.accept(0)
    assert not matcher.accept(PIECES.encode("2")[0])
