"""Whether two answers are equal: exactly, by value, for every value of their variables.

Numbers are compared to fifty digits beyond their size, never with a tolerance: 0.33 is not 1/3, 2^{99} not 2^{98}.

    python -m evaluators.grade answers.jsonl
"""

import logging
import random
from fractions import Fraction
from typing import Any

import math_verify
import mpmath  # type: ignore[import-untyped]
import sympy

from evaluators.values import Based, Equation, Formula, Items, Matrix, Opaque, Ratio, Span, Union, Value, Words

# It warns that its own alarm is off; the worker process is killed from outside instead.
logging.getLogger("math_verify").setLevel(logging.ERROR)

DIGITS, MAX_DIGITS = 60, 6000
SAMPLES = 12


def equal(gold: Value, answer: Value) -> bool:
    """Whether a reader who knows the gold answer would accept the other as the same."""
    answer = _unwrap(gold, answer)
    if isinstance(gold, Formula) and isinstance(answer, Items) and answer.kind != "tuple":
        return all(equal(gold, item) for item in answer.items)  # the same value in two notations, or a set of one
    match gold, answer:
        case Formula(), Formula():
            return _units_agree(gold, answer) and _same(gold, answer)
        case Items(), Items():
            return _same_items(gold, answer)
        case Items(kind="tuple"), Matrix() | Span():
            return _tuple_as(gold, answer)
        case Matrix(), Items(kind="tuple"):
            return _tuple_as(answer, gold)
        case Span(), Items(kind="tuple"):
            return _tuple_as(answer, gold)
        case Span(), Span():
            ends = (gold.low_closed, gold.high_closed) == (answer.low_closed, answer.high_closed)
            return ends and equal(gold.low, answer.low) and equal(gold.high, answer.high)
        case Union(), Union():
            return _unordered(gold.parts, answer.parts)
        case Matrix(), Matrix():
            return gold.kind == answer.kind and _ordered_rows(gold, answer)
        case Equation(), Equation():
            return _same_equation(gold, answer)
        case Ratio(), Ratio():
            return _same_ratio(gold, answer)
        case Based(), Based():
            return (gold.digits, gold.base) == (answer.digits, answer.base)
        case Based(), Formula():  # the question names the base
            return not answer.unit and answer.value == Fraction(gold.digits) if gold.digits.isdigit() else False
        case Formula(), Based():
            return answer.base == 10 and gold.value == Fraction(answer.digits)
        case Formula(value=sympy.Symbol() as symbol), Words():
            return str(symbol.name).lower() == answer.words
        case Words(), Words():
            return gold.words == answer.words
        case Opaque(), Opaque():
            return gold.text == answer.text
    return False


def _unwrap(gold: Value, answer: Value) -> Value:
    """x = 5 where 5 is asked, and the other way round; the tuple (4, -2) given as x = 4, y = -2."""
    if isinstance(answer, Equation) and not isinstance(gold, Equation):
        return _unwrap(gold, answer.right) if _is_label(answer) else answer
    if isinstance(answer, Items) and not isinstance(gold, Equation):
        return Items(answer.kind, tuple(_unwrap(Words(""), item) for item in answer.items))
    if isinstance(gold, Equation) and not isinstance(answer, Equation) and _is_label(gold):
        return Equation(gold.left, answer)
    return answer


def _is_label(equation: Equation) -> bool:
    """Whether the left side only names the right one (x, b - a, mn), or is a calculation of it; -x = 5 tells x."""
    left = equation.left.value
    if isinstance(left, Fraction) or not left.free_symbols or left.is_Symbol:
        return True
    constant = isinstance(equation.right, Formula) and not _sympy(equation.right.value).free_symbols
    negated = all(term.could_extract_minus_sign() for term in sympy.Add.make_args(left))
    return constant and not negated and left.atoms(sympy.Number) <= {sympy.Integer(-1)}


def _units_agree(gold: Formula, answer: Formula) -> bool:
    """A unit left out is no error, another unit is."""
    return not gold.unit or not answer.unit or gold.unit == answer.unit


def _same(gold: Formula, answer: Formula) -> bool:
    if answer.unit == "percent" and gold.unit != "percent":
        return _same_percent(gold, answer)
    return same_value(gold.value, answer.value)


def _same_percent(gold: Formula, answer: Formula) -> bool:
    """20% is 20 where a percentage is asked, and it is 1/5; but 0.15% is not 0.15."""
    if same_value(gold.value, answer.value / 100):
        return True
    return bool(abs(sympy.N(gold.value)) >= 1) and same_value(gold.value, answer.value)


def same_value(left: Any, right: Any) -> bool:
    """Equality of two numbers or expressions."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    left, right = _sympy(left), _sympy(right)
    if left.free_symbols != right.free_symbols and not (left.free_symbols and right.free_symbols):
        return bool(left.free_symbols or right.free_symbols) and _identity(left, right)
    return _identity(left, right) if left.free_symbols else _same_number(left, right)


def _sympy(value: Any) -> sympy.Expr:
    return sympy.Rational(value.numerator, value.denominator) if isinstance(value, Fraction) else value


def _same_number(left: sympy.Expr, right: sympy.Expr) -> bool:
    if left == right:
        return left not in (sympy.nan, sympy.zoo)
    first, second = _evaluate(left, DIGITS), _evaluate(right, DIGITS)
    if first is None or second is None or not _close(first, second, DIGITS):
        return first is not None and second is not None and _both_zero(left, right, first, second)
    size = max(0, int(mpmath.log10(abs(first)))) if first else 0
    if size < DIGITS // 3:
        return True
    digits = DIGITS + size
    if digits > MAX_DIGITS:
        return False  # too long to tell apart
    first, second = _evaluate(left, digits), _evaluate(right, digits)
    return first is not None and second is not None and _close(first, second, digits)


def _both_zero(left: sympy.Expr, right: sympy.Expr, first: Any, second: Any) -> bool:
    """A zero in disguise has no digits to compare."""
    if max(abs(first), abs(second)) > mpmath.mpf(10) ** -40:
        return False
    return bool(sympy.simplify(left - right) == 0)


def _evaluate(expression: sympy.Expr, digits: int, at: dict[Any, Any] | None = None) -> Any:
    value = expression.evalf(digits, subs=at)
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return None
    with mpmath.workdps(digits + 10):
        return mpmath.mpc(*(part._to_mpmath(mpmath.mp.prec) for part in value.as_real_imag()))


def _close(first: Any, second: Any, digits: int) -> bool:
    with mpmath.workdps(digits):
        scale = max(abs(first), abs(second))
        return bool(abs(first - second) <= scale * mpmath.mpf(10) ** (8 - digits))


def _identity(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Equal wherever both are real, at random points; a point where either is not real says nothing."""
    ratios = _ratios(left, right)
    if ratios:
        return all(ratio == 1 for ratio in ratios)
    return bool(math_verify.verify(left, right, timeout_seconds=None))


def _ratios(left: sympy.Expr, right: sympy.Expr) -> list[Any]:
    """left / right at random points, 1 exactly where they are equal, None where only the divisor is 0."""
    generator = random.Random(0)
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    ratios: list[Any] = []
    for sample in range(SAMPLES):
        sign = 1 if sample % 2 else -1
        at = {symbol: sign * sympy.Rational(generator.randint(2, 999), 97) for symbol in symbols}
        first, second = _evaluate(left, DIGITS, at), _evaluate(right, DIGITS, at)
        if first is None or second is None or abs(first.imag) + abs(second.imag) > mpmath.mpf(10) ** -30:
            continue
        if _close(first, second, DIGITS):
            ratios.append(1)
        else:
            ratios.append(first / second if second else None)
    return ratios


def _same_items(gold: Items, answer: Items) -> bool:
    """A tuple is ordered and no set; a bare list may be either."""
    kinds = {gold.kind, answer.kind}
    if kinds == {"tuple", "set"} or (gold.kind == "list" and answer.kind == "tuple"):
        return False
    if "tuple" in kinds:
        return _ordered(gold.items, answer.items)
    return _unordered(gold.items, answer.items)


def _ordered(gold: tuple[Value, ...], answer: tuple[Value, ...]) -> bool:
    return len(gold) == len(answer) and all(equal(first, second) for first, second in zip(gold, answer, strict=True))


def _unordered(gold: tuple[Value, ...], answer: tuple[Value, ...]) -> bool:
    rest = list(answer)
    for item in gold:
        match = next((other for other in rest if equal(item, other)), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest


def _ordered_rows(gold: Matrix, answer: Matrix) -> bool:
    rows = zip(gold.rows, answer.rows, strict=False)
    return len(gold.rows) == len(answer.rows) and all(_ordered(first, second) for first, second in rows)


def _tuple_as(pair: Items, other: Matrix | Span) -> bool:
    """A vector written as a tuple; an open interval is written like a pair."""
    if isinstance(other, Span):
        return not (other.low_closed or other.high_closed) and _ordered(pair.items, (other.low, other.high))
    if len(other.rows) == 1:
        return _ordered(pair.items, other.rows[0])
    return all(len(row) == 1 for row in other.rows) and _ordered(pair.items, tuple(row[0] for row in other.rows))


def _same_equation(gold: Equation, answer: Equation) -> bool:
    """The same solutions: the differences of the sides are multiples of each other."""
    if not (isinstance(gold.right, Formula) and isinstance(answer.right, Formula)):
        return equal(gold.left, answer.left) and equal(gold.right, answer.right)
    left = _sympy(gold.left.value) - _sympy(gold.right.value)
    right = _sympy(answer.left.value) - _sympy(answer.right.value)
    if left.free_symbols != right.free_symbols:
        return False
    ratios = _ratios(left, right)
    return bool(ratios) and None not in ratios and all(_close(ratio, ratios[0], DIGITS // 2) for ratio in ratios)


def _same_ratio(gold: Ratio, answer: Ratio) -> bool:
    if gold.clock and answer.clock:
        return gold.parts == answer.parts and (not gold.half or not answer.half or gold.half == answer.half)
    if len(gold.parts) != len(answer.parts) or 0 in answer.parts:
        return gold.parts == answer.parts
    return len({first / second for first, second in zip(gold.parts, answer.parts, strict=True)}) == 1
