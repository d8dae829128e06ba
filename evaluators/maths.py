"""Whether a mathematical answer equals the gold one."""

import re
from fractions import Fraction


def judge(text: str, gold: str, benchmark: str) -> tuple[bool, str | None, str]:
    """(correct, extracted, reason)."""
    boxes = re.findall(r"\\boxed\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", text)
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?", text)
    found = boxes[-1] if boxes else numbers[-1] if numbers else None
    if found is None:
        return False, None, "no answer"
    same = _number(found) == _number(gold)
    return same, found, "equal" if same else "different"


def _number(text: str) -> Fraction | str:
    plain = text.replace(",", "").strip(" .$")
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return plain
