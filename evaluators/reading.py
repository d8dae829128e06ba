"""Read an answer: what kind it is, and its parts.

python -m evaluators.grade answers.jsonl
"""

import re
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy

from evaluators.latex import has_outer, split_top, tidy
from evaluators.numerals import SPELLED, number
from evaluators.units import split_unit
from evaluators.values import (
    Based,
    Equation,
    Formula,
    Items,
    Matrix,
    NotMathsError,
    Opaque,
    Ratio,
    Span,
    Union,
    Value,
    Words,
)

MAX_CHARS, MAX_DEPTH, MAX_DIGITS = 1000, 40, 400

BASE_NAMES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
BASES = {name: base for base, name in enumerate(BASE_NAMES.split(), 2)}
BASED = re.compile(
    r"\(?\s*(?P<digits>\d[\dA-Fa-f]*)\s*\)?\s*(?:_[\s{(]*(?:base[ -]*)?|\(?\s*(?:in )?base[ -]*)\s*"
    r"(?P<base>\d+|[a-z]+)[\s)}]*"
)
CLOCK = re.compile(r"(?P<hour>\d{1,2})\s*:\s*(?P<minute>\d{2})\s*(?P<half>[AaPp]\.?\s*[Mm]\.?)?\s*")
MATRIX = re.compile(
    r"(?P<factor>[^(\[=]*?)[(\[]?\s*\\begin\{(?P<kind>[pbBvV]?matrix|array)\}(?:\{[^{}]*\})?"
    r"(?P<body>.*)\\end\{(?P=kind)\}\s*[)\]]?",
    re.DOTALL,
)
AND = (
    r",|;|\\text\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
    r"|\\(?:lor|land|vee|wedge)(?![A-Za-z])"
)
RELATION = r"<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z])"
DOWN = (">", r"\ge")
# What may stand before an equals sign and only names the value: words, an angle, a segment, a size, f(x), P(A), (x, y).
NAME = re.compile(
    r"(?:\\text\{[^{}]*\}|[A-Za-z][A-Za-z ]{2,40}|m?\s*\\angle\s*\{?[A-Z]+\}?|\\overline\s*\{?[A-Z]+\}?|[A-Z]{2,4}"
    r"|\\?#\s*[A-Z]|\|[^|]*\||(?:\\text\{[^{}]*\}|[A-Za-z](?:_\{?\w+\}?)?)\([^()=]*\)|\([a-z](?:,\s*[a-z])+\))\s*"
)
FILLER = re.compile(
    r"\b(?:the|an?|is|it|it's|its|are|was|answer|final|correct|option|choice|so|therefore|thus|hence|be)\b",
    re.IGNORECASE,
)
TEXT = re.compile(r"\\text\{([^{}]*)\}")


def read(text: str) -> Value:
    """Read an answer; raises NotMathsError."""
    spelt = tidy(text)
    if not spelt:
        raise NotMathsError("empty")
    if len(spelt) > MAX_CHARS or re.search(rf"\d{{{MAX_DIGITS},}}", spelt.replace(",", "")):
        raise NotMathsError("too long")
    if max(spelt.count(bracket) for bracket in "({[") > MAX_DEPTH:
        raise NotMathsError("too deep")
    return _read(spelt)


def _read(text: str) -> Value:
    text = text.strip()
    while has_outer(text, "{", "}"):
        text = text[1:-1].strip()
    for reader in READERS:
        value = reader(text)
        if value is not None:
            return value
    return _formula(text)


def _number(text: str) -> Value | None:
    if (word := TEXT.sub(r"\1", text).strip().lower()) in SPELLED:
        return Formula(Fraction(SPELLED[word]))
    bare, unit, scale = split_unit(text)
    value = number(bare)
    return None if value is None else Formula(value * scale, unit)


def _based(text: str) -> Value | None:
    match = BASED.fullmatch(TEXT.sub(r" \1 ", text))
    if match is None:
        return None
    base = int(match["base"]) if match["base"].isdigit() else BASES.get(match["base"], 0)
    return Based(match["digits"].lstrip("0").upper() or "0", base) if base > 1 else None


def plain_words(text: str) -> str:
    """The words of a text answer."""
    text = TEXT.sub(r" \1 ", text)
    text = FILLER.sub(" ", re.sub(r"[^\w\s'-]", " ", text))
    return " ".join(text.lower().split())


def _words(text: str) -> Value | None:
    """All text, or a word that is no symbol; a choice letter in parentheses is its letter."""
    outside = TEXT.sub("", text)
    if re.fullmatch(r"\\text\{\s*\(?[A-Za-z]\)?\s*\}", text) or re.fullmatch(r"\([A-Z]\)", text):
        return Words(re.sub(r"[^A-Za-z]", "", text.replace(r"\text", "")).lower())
    if outside != text and not re.search(r"[\w\\]", outside) and not re.search(r"\d", text):
        return Words(plain_words(text))
    if re.fullmatch(r"[^\W\d_]{3,}(?:[ '-][^\W\d_]+)*", text):
        return Words(plain_words(text))
    return None


def _opaque(text: str) -> Value | None:
    if re.fullmatch(r"\\mathbb\s*\{?\s*R\s*\}?", text):
        return Span(Formula(-sympy.oo), Formula(sympy.oo), False, False)
    if r"\ldots" in text or r"\setminus" in text or r"\mathbb" in text or r"\emptyset" in text:
        return Opaque(re.sub(r"\s+", "", text))
    return None


def _clock(text: str) -> Value | None:
    if (match := CLOCK.fullmatch(TEXT.sub(r"\1", text))) is None:
        return None
    half = re.sub(r"[^apm]", "", (match["half"] or "").lower())
    return Ratio((Fraction(match["hour"]), Fraction(match["minute"])), True, half)


def _ratio(text: str) -> Value | None:
    parts = [number(part) for part in split_top(text, r":|\\text\{\s*to\s*\}|(?<= )to(?= )")]
    if len(parts) < 2 or any(part is None for part in parts):
        return None
    return Ratio(tuple(part for part in parts if part is not None), False)


def _matrix(text: str) -> Value | None:
    match = MATRIX.fullmatch(text)
    if match is None:
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match["body"]) if row.strip()]
    factor = match["factor"].strip()
    cells = tuple(tuple(_read(f"({factor})({cell})" if factor else cell) for cell in row.split("&")) for row in rows)
    return Matrix(cells, "bars" if match["kind"] in ("vmatrix", "Vmatrix") else "brackets")


def _membership(text: str) -> Value | None:
    match = re.fullmatch(r"[A-Za-z]\s*\\in(?![A-Za-z])\s*(.+)", text)
    if match is None:
        match = re.fullmatch(r"\\\{\s*[A-Za-z]\s*[|:]\s*(.+?)\s*\\\}", text)
    return _read(match[1]) if match else None


def _union(text: str) -> Value | None:
    parts = split_top(text, r"\\cup(?![A-Za-z])|(?<=[)\]])\s*U\s*(?=[(\[])")
    if len(parts) < 2:
        return None
    return Union(tuple(_as_span(_read(part)) for part in parts))


def _as_span(value: Value) -> Value:
    """In a union, a pair in parentheses is an open interval."""
    if isinstance(value, Items) and value.kind == "tuple" and len(value.items) == 2:
        low, high = value.items
        if isinstance(low, Formula) and isinstance(high, Formula):
            return Span(low, high, False, False)
    return value


def _listed(text: str) -> Value | None:
    parts = split_top(text, AND)
    if len(parts) < 2 or text.startswith(("]", r"\langle")) or text.endswith("["):
        return None
    items = [_read(part) for part in parts if part]
    if any(isinstance(item, Span) for item in items) and re.search(r"\bor\b|\\lor", text):
        return Union(tuple(items))
    return Items("list", tuple(_flat(items)))


def _flat(items: list[Value]) -> list[Value]:
    """Both values of a plus-minus count as items."""
    flat: list[Value] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Items) and item.kind == "list" else [item])
    return flat


def _bracketed(text: str) -> Value | None:
    if has_outer(text, r"\{", r"\}"):
        return Items("set", tuple(_flat([_read(part) for part in split_top(text[2:-2], ",|;")])))
    if match := re.fullmatch(r"\\langle(.*)\\rangle", text):
        return Items("tuple", tuple(_read(part) for part in split_top(match[1], ",")))
    if not (text[:1] in "([]" and text[-1:] in ")][" and len(text) > 2):
        return None
    parts = split_top(text[1:-1], ",|;")
    if len(parts) < 2 or (text[0] + text[-1] == "()" and not has_outer(text, "(", ")")):
        return None
    items = tuple(_read(part) for part in parts)
    if text[0] + text[-1] != "()" or r"\infty" in text:
        match items:
            case Formula() as low, Formula() as high:
                return Span(low, high, text[0] == "[", text[-1] == "]")
    return Items("tuple", items)


def _relation(text: str) -> Value | None:
    """Inequalities become intervals; a name in words before an equals sign is left out."""
    sides = split_top(text, RELATION)
    if len(sides) > 1:
        return _inequality(sides, re.findall(RELATION, text))
    sides = split_top(text, r"(?<![<>!\\])=")
    if len(sides) < 2:
        return None
    value = _read(sides[-1])
    if NAME.fullmatch(sides[0]):
        return value
    return Equation(_formula(sides[0]), value)


def _inequality(sides: list[str], signs: list[str]) -> Value:
    """x < 3, 3 > x and 1 < x <= 3 are intervals."""
    infinity = Formula(sympy.oo)
    if len(sides) == 2 and len(signs) == 1:
        if number_like(sides[0]):
            sides, signs = [sides[1], sides[0]], [_mirror(signs[0])]
        bound, closed = _formula(sides[1]), "e" in signs[0]
        if not re.fullmatch(r"[A-Za-z]|\\[a-z]+", sides[0].strip()):
            return Opaque(re.sub(r"\s+", "", sides[0] + signs[0] + sides[1]))
        if signs[0] in ("<", r"\le"):
            return Span(Formula(-sympy.oo), bound, False, closed)
        return Span(bound, infinity, closed, False)
    if len(sides) == 3 and len(signs) == 2 and (signs[0] in DOWN) == (signs[1] in DOWN):
        low, high, low_closed, high_closed = sides[0], sides[2], "e" in signs[0], "e" in signs[1]
        if signs[0] in DOWN:
            low, high, low_closed, high_closed = high, low, high_closed, low_closed
        return Span(_formula(low), _formula(high), low_closed, high_closed)
    raise NotMathsError("chain of inequalities")


def number_like(text: str) -> bool:
    """Whether no letter stands for a variable in it."""
    return not re.search(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", re.sub(r"\\[A-Za-z]+", "", text))


def _mirror(sign: str) -> str:
    return {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[sign]


def _approximate(text: str) -> Value | None:
    sides = split_top(text, r"\\(?:approx|simeq|sim|cong)(?![A-Za-z])")
    if len(sides) < 2:
        return None
    return _read(sides[0] or sides[1])


def _plus_minus(text: str) -> Value | None:
    if r"\pm" not in text and r"\mp" not in text:
        return None
    upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
    return Items("list", (_read(upper), _read(lower)))


def _formula(text: str) -> Formula:
    while has_outer(text, "{", "}"):
        text = text[1:-1].strip()
    bare, unit, scale = split_unit(text)
    bare = bare.replace(r"^\circ", r"\cdot\frac{\pi}{180}")
    exact = number(bare)
    if exact is not None:
        return Formula(exact * scale, unit)
    if re.search(r"(?<![\\A-Za-z])[A-Za-z]{4,}", bare) or r"\text" in bare:
        raise NotMathsError("prose")
    try:
        expression: Any = latex2sympy(
            _exact_decimals(bare), is_real=True, convert_degrees=False, normalization_config=None
        )
    except Exception as error:
        raise NotMathsError("not a formula") from error
    if not isinstance(expression, sympy.Expr):
        raise NotMathsError("not a formula")
    expression = expression.replace(sympy.UnevaluatedExpr, lambda inner: inner)
    imaginary = {symbol: sympy.I for symbol in expression.free_symbols if symbol.name == "i"}
    expression = expression.xreplace(imaginary) if imaginary else expression
    return Formula(expression * sympy.Rational(scale) if scale != 1 else expression, unit)


def _exact_decimals(text: str) -> str:
    """Decimals as fractions, whole numbers without separators, mixed numbers as sums."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?<![\d.}])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", r"(\1+\\frac{\2}{\3})", text)
    return re.sub(
        r"(\d*)\.(\d+)", lambda match: rf"{{\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}}}}", text
    )


READERS = (
    _based,
    _number,
    _words,
    _opaque,
    _clock,
    _matrix,
    _membership,
    _union,
    _listed,
    _bracketed,
    _ratio,
    _relation,
    _approximate,
    _plus_minus,
)
