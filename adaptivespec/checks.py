"""Errors for values out of range that name the value, what was expected and the remedy."""

import math
import sys
from collections.abc import Sequence


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float = math.inf,
    hint: str = "",
) -> None:
    """Raise ValueError unless `value` is a finite number in the range."""
    low = at_least if above is None else above
    bounds = [f"above {above}" if above is not None else f"of at least {at_least}"]
    if at_most != math.inf:
        bounds.append(f"at most {at_most}")
    # The largest float first: math.isfinite raises OverflowError for an integer beyond it.
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if fits and low is not None:
        fits = (value > low if above is not None else value >= low) and value <= at_most  # type: ignore[operator]
    if not fits:
        raise ValueError(f"{name}={value!r}: expected a number {' and '.join(bounds)}{f' ({hint})' if hint else ''}")


def check_count(name: str, value: object, *, at_least: int = 1) -> None:
    """Raise ValueError unless `value` is an integer of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name}={value!r}: expected an integer of at least {at_least}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(str, choices))}")


def check_bool(name: str, value: object) -> None:
    """Raise ValueError unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: expected true or false")
