"""How texts are cut into words before the merges of a byte-level vocabulary: `tokenizer.ggml.pre` by name.

The expressions are those of the models' own tokenizer.json files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Split

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MARKS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_MARKS_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_MARKS_AND_SPACES}"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_MARKS_SLASHES_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(ending: str, digits: str) -> str:
    """Words whose capitals come first; `ending` is what a word may end in."""
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{_UPPER}*{_LOWER}+{ending}|{start}{_UPPER}+{_LOWER}*{ending}"
    return f"{words}|{digits}|{_MARKS_SLASHES_AND_SPACES}"


_TEKKEN = _cased("", r"\p{N}")
_GPT4O = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")

# Letters that have a case, not all of them, as DeepSeek lists them.
_DEEPSEEK_LETTERS = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}"
    r"\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}"
    r"\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}"
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}"
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}"
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}"
    r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}"
    r"\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}"
    r"\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}"
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}"
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_DEEPSEEK_MARKS = r"!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}"
_DEEPSEEK_CJK = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_DEEPSEEK_V3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenization:
    """What `tokenizer.ggml.pre` stands for, beside the vocabulary."""

    steps: Callable[[], Sequence[PreTokenizer]]
    """Makes the cuts, in order; the last one turns bytes into the characters that stand for them."""
    nfc: bool = False
    """Texts are composed (Unicode NFC) first."""
    ignore_merges: bool = False
    """A word that is a token is taken whole, whatever the merges."""
    add_bos_token: bool = False
    """What holds for files that do not say."""


def _split(*expressions: str) -> list[PreTokenizer]:
    return [Split(Regex(expression), "isolated") for expression in expressions]


def _bytes() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=False)


def _gpt2() -> PreTokenizer:
    """Cuts GPT-2's words."""
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    return Digits(individual_digits=True)


_LLAMA_BPE = PreTokenization(lambda: [*_split(_LLAMA3), _bytes()], ignore_merges=True, add_bos_token=True)
_QWEN = PreTokenization(lambda: [*_split(_QWEN2), _bytes()], nfc=True)
_DIGITS_AND_WORDS = PreTokenization(lambda: [_single_digits(), _gpt2()])

PRE_TOKENIZATIONS = {
    "command-r": PreTokenization(lambda: [_single_digits(), _gpt2()], nfc=True),
    "deepseek-coder": PreTokenization(
        lambda: [*_split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK), _single_digits(), _bytes()]
    ),
    "deepseek-llm": PreTokenization(
        lambda: [
            *_split(r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", rf"\s?[{_DEEPSEEK_MARKS}]+", r"\s+$", _DEEPSEEK_CJK),
            _single_digits(),
            _bytes(),
        ]
    ),
    "deepseek-r1-qwen": _QWEN,
    "deepseek-v3": PreTokenization(
        lambda: [
            *_split(r"\p{N}{1,3}", r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+", _DEEPSEEK_V3_WORDS),
            _bytes(),
        ]
    ),
    "falcon": PreTokenization(
        lambda: [Punctuation("contiguous"), _gpt2(), Digits(individual_digits=False), *_split("[0-9][0-9][0-9]")]
    ),
    "gpt-2": PreTokenization(lambda: [_gpt2()]),
    "gpt-4o": PreTokenization(lambda: [*_split(_GPT4O), _bytes()]),
    "llama-bpe": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "mpt": PreTokenization(lambda: [_gpt2()], nfc=True),
    "qwen2": _QWEN,
    "refact": _DIGITS_AND_WORDS,
    "smollm": _DIGITS_AND_WORDS,
    "starcoder": _DIGITS_AND_WORDS,
    "tekken": PreTokenization(lambda: [*_split(_TEKKEN), _bytes()], ignore_merges=True, add_bos_token=True),
}
