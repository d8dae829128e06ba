"""Intervals: equal to scipy's, blind to nothing, and honest about restarts."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis import stats

RNG = np.random.default_rng(5)
TOKENS = RNG.integers(50, 400, (80, 1)).astype(float)


def test_a_ratio_is_a_ratio_of_sums() -> None:
    estimate = stats.ratio(np.array([[30.0], [10.0]]), np.array([[10.0], [10.0]]))
    assert estimate.value == 2.0
    assert estimate.interval is None, "two items are too few to draw from"


def test_interval_is_scipys() -> None:
    seconds = TOKENS * RNG.uniform(0.008, 0.012, TOKENS.shape)
    base = TOKENS * RNG.uniform(0.015, 0.025, TOKENS.shape)
    estimate = stats.ratio(TOKENS, seconds, over=(TOKENS, base))

    def statistic(t, a, b, axis):  # type: ignore[no-untyped-def]
        return (t.sum(axis) / a.sum(axis)) / (t.sum(axis) / b.sum(axis))

    arrays = [array[:, 0] for array in (TOKENS, seconds, base)]
    theirs = scipy_stats.bootstrap(
        arrays, statistic, paired=True, vectorized=True, n_resamples=4000, method="percentile", rng=1
    )
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert estimate.interval == pytest.approx(tuple(theirs.confidence_interval), abs=0.1 * width)


def test_the_same_input_gives_the_same_interval() -> None:
    assert stats.ratio(TOKENS, TOKENS + 1).interval == stats.ratio(TOKENS.copy(), TOKENS + 1).interval


def arm(factor: float, restart_noise: float, rng: np.random.Generator, n_repeats: int) -> np.ndarray:
    """Seconds per (item, repeat): the item's work, noise per request and per restart."""
    noise = rng.normal(1.0, 0.02, (len(TOKENS), n_repeats)) * rng.normal(1.0, restart_noise, (1, n_repeats))
    return TOKENS * 0.01 * factor * noise


@pytest.mark.parametrize("restart_noise", [0.0, 0.01])
def test_an_arm_against_itself_is_within_its_interval_of_one(restart_noise: float) -> None:
    hits = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ours, theirs = arm(1.0, restart_noise, rng, 5), arm(1.0, restart_noise, rng, 5)
        tokens = np.repeat(TOKENS, 5, axis=1)
        hits += bool(stats.ratio(tokens, ours, over=(tokens, theirs)).contains(1.0))
    assert hits >= 48, "a 95 % interval of five restarts may be a little narrow, but not blind"


def test_a_three_percent_slow_down_is_found_with_enough_repeats() -> None:
    rng = np.random.default_rng(3)
    tokens = np.repeat(TOKENS, 6, axis=1)
    estimate = stats.ratio(tokens, arm(1.03, 0.005, rng, 6), over=(tokens, arm(1.0, 0.005, rng, 6)))
    assert estimate.contains(1.0) is False
    assert estimate.value == pytest.approx(1 / 1.03, abs=0.01)


def test_restart_noise_widens_the_interval() -> None:
    rng = np.random.default_rng(4)
    tokens = np.repeat(TOKENS, 5, axis=1)
    quiet, noisy = (stats.ratio(tokens, arm(1.0, noise, rng, 5)).interval for noise in (0.0, 0.05))
    assert quiet is not None
    assert noisy is not None
    assert noisy[1] - noisy[0] > 3 * (quiet[1] - quiet[0])


def test_mcnemar_is_exact() -> None:
    correct = np.array([True] * 6 + [False] * 4)
    reference = np.array([True] * 6 + [True] * 4)
    assert stats.mcnemar_p(correct, reference) == pytest.approx(2 * 0.5**4)
    assert stats.mcnemar_p(correct, correct) == 1.0


def test_a_single_repeat_has_no_restart_deviation() -> None:
    assert stats.restart_deviation([2.0]) is None
    assert stats.restart_deviation([1.0, 3.0]) == pytest.approx(2**0.5 / 2)
