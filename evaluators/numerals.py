"""Exact numbers: decimals, fractions, mixed numbers, repeating decimals, and number words.

python -m evaluators.grade answers.jsonl
"""

import re
from fractions import Fraction

from evaluators.values import NotMathsError

INTEGER = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ ']\d{3})+|\d+"
GROUPING = str.maketrans("", "", ", '")
PLAIN = re.compile(rf"(?P<sign>[-+]?)\s*(?P<number>(?:{INTEGER})(?:\.\d*)?|\.\d+)")
SIMPLE_FRACTION = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<whole>{INTEGER})?\s*(?:\\frac\s*\{{\s*(?P<over>-?\d+)\s*\}}\s*\{{\s*(?P<under>\d+)\s*\}})"
)
SLASH = re.compile(rf"(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)\s+)?(?P<over>{INTEGER})\s*/\s*(?P<under>{INTEGER})")
REPEATING = re.compile(
    r"(?P<sign>[-+]?)(?P<whole>\d*)\.(?P<start>\d*)(?:\\(?:overline|bar|dot|overdot)\s*\{?(?P<cycle>\d+)\}?)"
)
DOTTED = re.compile(r"(?P<sign>[-+]?)(?P<whole>\d*)\.(?P<start>\d*?)(?P<cycle>\d+?)(?P=cycle){2,}\s*\\ldots")
TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
ONES = ["zero", *"one two three four five six seven eight nine".split(), *TEENS.split()]  # noqa: SIM905
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
SPELLED = {word: value for value, word in enumerate(ONES)} | {word: 10 * value for value, word in enumerate(TENS, 2)}
SPELLED |= {f"{tens}-{ones}": SPELLED[tens] + SPELLED[ones] for tens in TENS for ones in ONES[1:10]}
SCIENTIFIC = re.compile(r"(?P<mantissa>[-+]?\d+(?:\.\d+)?)[eE](?P<exponent>[-+]?\d{1,3})")


def number(text: str) -> Fraction | None:
    """An exact number in decimal, fractional, mixed or repeating notation."""
    if match := PLAIN.fullmatch(text):
        value = Fraction(match["number"].translate(GROUPING).rstrip("."))
    elif match := SIMPLE_FRACTION.fullmatch(text) or SLASH.fullmatch(text):
        under = Fraction(match["under"].translate(GROUPING))
        if under == 0:
            raise NotMathsError("division by zero")
        value = (
            Fraction((match["whole"] or "0").translate(GROUPING)) + Fraction(match["over"].translate(GROUPING)) / under
        )
    elif match := REPEATING.fullmatch(text) or DOTTED.fullmatch(text):
        start, cycle = match["start"], match["cycle"]
        scale = 10 ** len(start)
        value = Fraction(match["whole"] + start or "0") / scale
        value += Fraction(int(cycle), scale * (10 ** len(cycle) - 1))
    elif match := SCIENTIFIC.fullmatch(text):
        return Fraction(match["mantissa"]) * Fraction(10) ** int(match["exponent"])
    else:
        return None
    return -value if match["sign"] == "-" else value
