"""Classes as people write them for structured output, and instances of each."""

import datetime
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypedDict

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark blue"
    QUOTED = 'say "é"\n'


class Priority(IntEnum):
    LOW = 1
    HIGH = 10


class Plain(BaseModel):
    """A person."""

    name: str = Field(description="First and last name")
    age: int
    height: float
    is_member: bool


class Optionals(BaseModel):
    title: str
    subtitle: Optional[str] = None  # noqa: UP045  as people write it
    pages: int | None = Field(default=None, examples=[12])
    rating: float = 0.5


class Enums(BaseModel):
    colour: Colour
    priority: Priority
    fallback: Colour = Colour.RED


class Literals(BaseModel):
    verb: Literal["get", "put"]
    version: Literal[1, 2, "latest"]
    exactly: Literal[True]
    nothing: None


class Address(BaseModel):
    street: str
    city: str


class Nested(BaseModel):
    home: Address
    work: Address | None
    others: list[Address] = []


class Lists(BaseModel):
    words: list[str]
    matrix: list[list[float]]
    few: Annotated[list[int], Field(min_length=1, max_length=3)]


class Tuples(BaseModel):
    pair: tuple[str, int]
    triple: tuple[bool, bool, bool]


class Dicts(BaseModel):
    counts: dict[str, int]
    deep: dict[str, dict[str, list[str]]]


class EnumKeys(BaseModel):
    per_colour: dict[Literal["red", "green"], int]


class Unions(BaseModel):
    value: int | str | list[int]
    either: Union[Address, Plain]  # noqa: UP007  as people write it


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Discriminated(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class ManyDiscriminated(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]


class BoundedNumbers(BaseModel):
    percent: Annotated[int, Field(ge=0, le=100)]
    positive: Annotated[int, Field(gt=0)]
    share: Annotated[float, Field(ge=0, le=1)]
    below: Annotated[float, Field(lt=2.5)]


class Multiples(BaseModel):
    dozens: Annotated[int, Field(multiple_of=12, ge=0)]


class BoundedStrings(BaseModel):
    code: Annotated[str, Field(min_length=2, max_length=4)]
    short: Annotated[str, Field(max_length=8)]
    long: Annotated[str, Field(min_length=5)]


class Patterns(BaseModel):
    zip_code: Annotated[str, Field(pattern=r"^\d{5}$")]
    slug: Annotated[str, Field(pattern=r"^[a-z]+(-[a-z0-9]+)*$")]


class Dates(BaseModel):
    day: datetime.date
    moment: datetime.datetime
    time: datetime.time


class Duration(BaseModel):
    takes: datetime.timedelta


class Identified(BaseModel):
    key: UUID
    address: IPv4Address


class Money(BaseModel):
    amount: Decimal


class Tree(BaseModel):
    label: str
    children: list["Tree"] = []


class Chain(BaseModel):
    value: int
    next: Optional["Chain"] = None


class Expression(BaseModel):
    operator: Literal["+", "*"]
    left: Union["Expression", float]
    right: Union["Expression", float]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    tags: list[str] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Aliased(BaseModel):
    from_: str = Field(alias="from")
    content_type: str = Field(alias="Content-Type")
    city: str = Field(alias="città")


class Page(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = None


class Anything(BaseModel):
    payload: Any
    settings: dict[str, Any]


class Sets(BaseModel):
    tags: set[str]


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    steps: list[Step]
    final_answer: str


class Numbers(RootModel[list[int]]):
    pass


class Point(NamedTuple):
    x: float
    y: float


class Movie(TypedDict):
    title: str
    year: int


@dataclass(frozen=True)
class Typed:
    """A type, and JSON data that it reads."""

    type: Any
    data: tuple[Any, ...]
    is_wider_in_json: bool = False
    """Its schema has instances that the type does not read: the year 10000, or a decimal that is any string."""


_ADA = {"name": "Ada Lovelace", "age": 36, "height": 1.68, "is_member": True}
_HOME = {"street": "Rue de l'Été 3", "city": "Orléans"}
TYPES = (
    Typed(Plain, (_ADA, {"name": "", "age": -1, "height": 2.0, "is_member": False})),
    Typed(Optionals, ({"title": "x"}, {"title": "\u2028", "subtitle": None, "pages": 3, "rating": 1e-7})),
    Typed(Enums, ({"colour": "red", "priority": 10}, {"colour": 'say "é"\n', "priority": 1, "fallback": "dark blue"})),
    Typed(Literals, ({"verb": "get", "version": "latest", "exactly": True, "nothing": None},)),
    Typed(Nested, ({"home": _HOME, "work": None}, {"home": _HOME, "work": _HOME, "others": [_HOME, _HOME]})),
    Typed(
        Lists,
        ({"words": [], "matrix": [[0.5, 1.5], []], "few": [1]}, {"words": ["\\"], "matrix": [], "few": [1, 2, 3]}),
    ),
    Typed(Tuples, ({"pair": ["a", 1], "triple": [True, False, True]},)),
    Typed(Dicts, ({"counts": {}, "deep": {}}, {"counts": {"a b": 1, "": 2}, "deep": {"x": {"y": ["z"]}}})),
    Typed(EnumKeys, ({"per_colour": {}}, {"per_colour": {"red": 1, "green": 2}})),
    Typed(Unions, ({"value": [1, 2], "either": _ADA}, {"value": "5", "either": _HOME})),
    Typed(Discriminated, ({"pet": {"kind": "cat", "lives": 9}}, {"pet": {"kind": "dog", "tricks": ["sit"]}})),
    Typed(ManyDiscriminated, ({"pets": []}, {"pets": [{"kind": "dog", "tricks": []}, {"kind": "cat", "lives": 1}]})),
    Typed(BoundedNumbers, ({"percent": 100, "positive": 1, "share": 1.0, "below": -7.25},)),
    Typed(Multiples, ({"dozens": 144}, {"dozens": 0})),
    Typed(
        BoundedStrings,
        ({"code": "ab", "short": "", "long": "hello"}, {"code": "日本語!", "short": "12345678", "long": "a" * 40}),
    ),
    Typed(Patterns, ({"zip_code": "01234", "slug": "a-b2-c"},)),
    Typed(
        Dates, ({"day": "2024-02-29", "moment": "2026-12-01T06:30:00Z", "time": "23:59:59.5Z"},), is_wider_in_json=True
    ),
    Typed(Duration, ({"takes": "P1DT2H"}, {"takes": "PT0S"}), is_wider_in_json=True),
    Typed(Identified, ({"key": "123e4567-e89b-12d3-a456-426614174000", "address": "192.168.0.1"},)),
    Typed(Money, ({"amount": 12.5}, {"amount": "12.50"}), is_wider_in_json=True),
    Typed(Tree, ({"label": "root"}, {"label": "a", "children": [{"label": "b", "children": [{"label": "c"}]}]})),
    Typed(Chain, ({"value": 1}, {"value": 1, "next": {"value": 2, "next": None}})),
    Typed(Expression, ({"operator": "+", "left": 1.5, "right": {"operator": "*", "left": 2.5, "right": 3.5}},)),
    Typed(Strict, ({"name": "x"}, {"name": "x", "tags": ["a"]})),
    Typed(Open, ({"name": "x"}, {"name": "x", "more": [1, {"and": "more"}]})),
    Typed(Aliased, ({"from": "a", "Content-Type": "text/plain", "città": "Roma"},)),
    Typed(Page[Plain], ({"items": []}, {"items": [_ADA, _ADA], "next_cursor": "abc"})),
    Typed(Anything, ({"payload": [None, {"a": 1.5}], "settings": {"a": {"b": []}}},)),
    Typed(Sets, ({"tags": ["a", "b"]},)),
    Typed(Reasoning, ({"steps": [{"explanation": "e", "output": "o"}], "final_answer": "42"},)),
    Typed(Numbers, ([], [1, -2, 3])),
    Typed(Point, ([1.5, 2.5],)),
    Typed(list[Movie], ([], [{"title": "Alien", "year": 1979}])),
    Typed(Colour, ("red", "dark blue")),
    Typed(Literal["yes", "no"], ("yes", "no")),
    Typed(int | None, (None, 5)),
)
