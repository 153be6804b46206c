"""Regular expressions drawn at random over a small alphabet, and texts drawn from each by its own structure."""

import random
from collections.abc import Callable
from dataclasses import dataclass

ALPHABET = "abé\n"


@dataclass(frozen=True)
class RandomRegex:
    pattern: str
    """In the notation that all engines share."""
    draw: Callable[[random.Random], str]
    """A text that it matches."""


def random_regex(rng: random.Random, depth: int = 3) -> RandomRegex:
    if depth == 0 or rng.random() < 0.15:
        return _character(rng)
    kind = rng.choice((_concatenation, _concatenation, _alternation, _repetition, _repetition, _optional))
    return kind(rng, depth - 1)


def _character(rng: random.Random) -> RandomRegex:
    pattern, texts = rng.choice(
        (
            ("a", "a"),
            ("b", "b"),
            ("é", "é"),
            (r"\n", "\n"),
            ("[ab]", "ab"),
            ("[^a]", "bé\n"),
            ("[^é]", "ab\n"),
            ("[a-z]", "ab"),
            (r"[é\n]", "é\n"),
            (".", "abé"),
            (r"\w", "ab"),
            (r"\s", "\n"),
            (r"\S", "abé"),
        )
    )
    return RandomRegex(pattern, lambda rng: rng.choice(texts))


def _concatenation(rng: random.Random, depth: int) -> RandomRegex:
    parts = [random_regex(rng, depth) for _ in range(rng.randint(2, 3))]
    pattern = "".join(f"(?:{part.pattern})" for part in parts)
    return RandomRegex(pattern, lambda rng: "".join(part.draw(rng) for part in parts))


def _alternation(rng: random.Random, depth: int) -> RandomRegex:
    parts = [random_regex(rng, depth) for _ in range(rng.randint(2, 3))]
    pattern = "|".join(part.pattern for part in parts)
    return RandomRegex(f"({pattern})", lambda rng: rng.choice(parts).draw(rng))


def _repetition(rng: random.Random, depth: int) -> RandomRegex:
    part = random_regex(rng, depth)
    least = rng.randint(0, 2)
    most = least + rng.randint(0, 2)
    count, most = rng.choice(
        (
            ("*", 3) if least == 0 else ("+", 3) if least == 1 else ("{2,}", 4),
            (f"{{{least},{most}}}", most),
            (f"{{{least}}}", least),
        )
    )
    return RandomRegex(
        f"(?:{part.pattern}){count}", lambda rng: "".join(part.draw(rng) for _ in range(rng.randint(least, most)))
    )


def _optional(rng: random.Random, depth: int) -> RandomRegex:
    part = random_regex(rng, depth)
    pattern = rng.choice((f"(?:{part.pattern})?", f"(?:{part.pattern}|)", f"(|{part.pattern})"))
    return RandomRegex(pattern, lambda rng: part.draw(rng) if rng.random() < 0.5 else "")


def mutated(text: str, rng: random.Random, alphabet: str) -> str:
    """A text that differs in a character or two: one more, one less, another one, or two in the other order."""
    place = rng.randint(0, len(text))
    kind = rng.choice(("insert", "delete", "replace", "swap"))
    if kind == "insert" or not text:
        return text[:place] + rng.choice(alphabet) + text[place:]
    place = min(place, len(text) - 1)
    if kind == "delete":
        return text[:place] + text[place + 1 :]
    if kind == "replace":
        return text[:place] + rng.choice(alphabet) + text[place + 1 :]
    return text[:place] + text[place : place + 2][::-1] + text[place + 2 :]
