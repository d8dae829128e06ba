"""Paired bootstrap over items for ratios of sums, McNemar's test, and variance between restarts.

    estimate = ratio(tokens_a, seconds_a, over=(tokens_b, seconds_b))
    estimate.value, estimate.low, estimate.high

Arrays are items x repeats. One draw takes items with replacement, the same ones in both arms, and (where there are several)
repeats with replacement, the same rounds in both arms. scipy.stats.bootstrap computes the same for one repeat (a test holds
both to each other); here all cells of a table share one set of drawn weights, which makes 135 cells a matter of seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS = 2000
SEED = 20260902
LEVEL = 0.95
FEWEST_ITEMS = 5


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure with its 95 % interval; None where there is too little to draw from."""

    value: float
    draws: Array | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Low and high end."""
        if self.draws is None:
            return None
        low, high = np.quantile(self.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def contains(self, value: float) -> bool | None:
        """Whether the interval holds a value; None where there is no interval."""
        interval = self.interval
        return None if interval is None else interval[0] <= value <= interval[1]


@lru_cache(maxsize=8)
def weights(n: int, seed: int) -> NDArray[np.float32]:
    """How often each of n things is taken, per draw: (DRAWS, n), rows sum to n."""
    return np.random.default_rng([seed, n]).multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(np.float32)


def drawn_sums(*arrays: Array) -> list[Array]:
    """Sums of (items, repeats) values, one per draw: (DRAWS,) each. All arrays at once: reading the weights is what costs."""
    n_items, n_repeats = arrays[0].shape
    # Single precision halves what is read; a draw needs no more, and the estimate itself does not come from here.
    per_repeat = (weights(n_items, SEED) @ np.hstack(arrays).astype(np.float32)).reshape(DRAWS, len(arrays), n_repeats)
    drawn = weights(n_repeats, SEED + 1) if n_repeats > 1 else np.ones((DRAWS, 1))
    return list(np.einsum("dar,dr->ad", per_repeat.astype(np.float64), drawn))


def ratio(
    numerator: Array, denominator: Array, over: tuple[Array, Array] | None = None, scale: float = 1.0
) -> Estimate:
    """Estimate sum(numerator) / sum(denominator), divided by the same of `over` where given.

    Arrays are (items, repeats). Raises ZeroDivisionError where a denominator is 0.
    """
    top, bottom = [numerator, *(over[1:] if over else ())], [denominator, *(over[:1] if over else ())]
    if not all(array.sum() for array in bottom):
        raise ZeroDivisionError("the denominator of a ratio is 0")
    value = scale * np.prod([array.sum() for array in top]) / np.prod([array.sum() for array in bottom])
    if numerator.shape[0] < FEWEST_ITEMS:
        return Estimate(float(value))
    sums = drawn_sums(*top, *bottom)
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = scale * np.prod(sums[: len(top)], axis=0) / np.prod(sums[len(top) :], axis=0)
    draws = draws[np.isfinite(draws)]
    # A reference that solves next to nothing has draws without any: no interval is better than a wrong one.
    return Estimate(float(value), draws if len(draws) == DRAWS else None)


def mean(estimates: list[Estimate]) -> Estimate:
    """Plain mean of independent estimates (Table 2 averages benchmarks)."""
    value = float(np.mean([estimate.value for estimate in estimates]))
    draws = [estimate.draws for estimate in estimates]
    if any(array is None for array in draws):
        return Estimate(value)
    rng = np.random.default_rng(SEED)
    # Cells of equal length share their drawn weights: shuffled, so that chance errors of benchmarks do not add up.
    shuffled = [rng.choice(array, DRAWS) for array in draws if array is not None]
    return Estimate(value, np.mean(shuffled, axis=0))


def mcnemar_p(correct: NDArray[np.bool_], reference: NDArray[np.bool_]) -> float:
    """Exact p-value that two arms are right equally often, given the same items."""
    from statsmodels.stats.contingency_tables import mcnemar

    table = [[int(np.sum(a & b)) for b in (reference, ~reference)] for a in (correct, ~correct)]
    return float(mcnemar(table, exact=True).pvalue)


def restart_deviation(per_repeat: Sequence[float]) -> float | None:
    """Standard deviation between repeats as a share of their mean; None for a single one."""
    return float(np.std(per_repeat, ddof=1) / np.mean(per_repeat)) if len(per_repeat) > 1 else None
