"""Programs of their own that say whether a text is in a language of the grammar tests."""

import csv
import io
import json
import re
import sqlite3


def is_arithmetic(text: str) -> bool:
    """Sums, differences, products and quotients of numbers, signs and parentheses, without spaces."""
    try:
        return _sum(text, 0) == len(text)
    except _NoArithmeticError:
        return False


class _NoArithmeticError(Exception):
    pass


def _sum(text: str, place: int) -> int:
    """The place after the sum that begins here."""
    place = _product(text, place)
    while text[place : place + 1] in ("+", "-"):
        place = _product(text, place + 1)
    return place


def _product(text: str, place: int) -> int:
    place = _factor(text, place)
    while text[place : place + 1] in ("*", "/"):
        place = _factor(text, place + 1)
    return place


def _factor(text: str, place: int) -> int:
    match text[place : place + 1]:
        case "-":
            return _factor(text, place + 1)
        case "(":
            place = _sum(text, place + 1)
            if text[place : place + 1] != ")":
                raise _NoArithmeticError
            return place + 1
    number = re.compile(r"[0-9]+(?:\.[0-9]+)?").match(text, place)
    if number is None:
        raise _NoArithmeticError
    return number.end()


def is_query(text: str) -> bool:
    """A statement that SQLite compiles for tables `people` and `orders`, and one that only reads."""
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE TABLE people (name TEXT, age INTEGER, city TEXT)")
        database.execute("CREATE TABLE orders (id INTEGER, name TEXT, total REAL)")
        database.execute(f"EXPLAIN {text}")
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return False
    finally:
        database.close()
    return text.startswith("SELECT ")


def is_csv_of_three_columns(text: str) -> bool:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return False
    return bool(rows) and all(len(row) == 3 for row in rows) and text.endswith("\n")


def is_json(text: str) -> bool:
    """As RFC 8259 has it, which knows no NaN."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def is_balanced(text: str) -> bool:
    """Brackets of three kinds."""
    closing = {"(": ")", "[": "]", "{": "}"}
    expected: list[str] = []
    for character in text:
        if character in closing:
            expected.append(closing[character])
        elif not expected or expected.pop() != character:
            return False
    return not expected


def is_palindrome(text: str) -> bool:
    """Over three characters."""
    return text == text[::-1] and set(text) <= set("abé")


def is_lisp(text: str) -> bool:
    """One expression: an atom, a string, or a list of expressions with spaces between them; quotes may be before it."""
    atoms = re.compile(r"""'*(?:[a-z+*/=<>?!-]+|-?[0-9]+|"[^"\\\n]*")""")
    while True:
        # Each round replaces lists of atoms by an atom.
        shorter = re.sub(rf"'*\({atoms.pattern}(?: {atoms.pattern})*\)|'*\(\)", "x", text)
        if shorter == text:
            return atoms.fullmatch(text) is not None
        text = shorter
