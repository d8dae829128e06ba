"""What an answer can be: a formula, a list, an interval, a matrix, an equation, a ratio, digits in a base, or words.

python -m evaluators.grade answers.jsonl
"""

from dataclasses import dataclass
from fractions import Fraction

import sympy


class NotMathsError(ValueError):
    """The text is no mathematical answer that we can read."""


@dataclass(frozen=True)
class Formula:
    """A number or an expression."""

    value: Fraction | sympy.Basic
    unit: str = ""


@dataclass(frozen=True)
class Items:
    """Several values: a tuple (ordered), a set, or a bare list (either)."""

    kind: str
    items: tuple["Value", ...]


@dataclass(frozen=True)
class Span:
    """An interval."""

    low: Formula
    high: Formula
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True)
class Union:
    """A union of intervals and sets."""

    parts: tuple["Value", ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of formulas; `kind` keeps a determinant's bars apart from brackets."""

    rows: tuple[tuple["Value", ...], ...]
    kind: str


@dataclass(frozen=True)
class Equation:
    """left = right."""

    left: Formula
    right: "Value"


@dataclass(frozen=True)
class Ratio:
    """a : b, or a time of day."""

    parts: tuple[Fraction, ...]
    clock: bool
    half: str = ""


@dataclass(frozen=True)
class Based:
    """Digits in a number base."""

    digits: str
    base: int


@dataclass(frozen=True)
class Words:
    """Text, in lower case and without articles."""

    words: str


@dataclass(frozen=True)
class Opaque:
    """A sequence with dots, or another notation that is only compared as it is spelt."""

    text: str


Value = Formula | Items | Span | Union | Matrix | Equation | Ratio | Based | Words | Opaque
