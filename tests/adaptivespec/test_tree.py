from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptivespec.options import TREE_POLICIES
from adaptivespec.shape import TreeShape
from adaptivespec.tree import AcceptHistory, CycleTree, DcsTree, HistoryOptions, TalonTree

UNIT = st.floats(0, 1)


def triplets(*shapes: str) -> tuple[TreeShape, ...]:
    return tuple(TreeShape.of([int(part) for part in shape.split(",")]) for shape in shapes)


def test_dcs_reaches_eight_shapes_from_the_starting_one_on() -> None:
    expected = triplets("3,4,4", "4,4,5", "4,3,5", "5,3,6", "5,2,6", "6,2,7", "6,1,7", "7,1,8")
    assert DcsTree().shapes() == expected
    assert set(DcsTree(rounding="half_even").shapes()) <= set(expected)


@given(signal=UNIT, rounding=st.sampled_from(["half_up", "half_even"]))
def test_dcs_selects_only_its_shapes_by_the_papers_formula(signal: float, rounding: str) -> None:
    policy = DcsTree(rounding=rounding)
    shape = policy.select(signal)
    assert shape in policy.shapes()
    assert abs(shape.num_steps - (3 + 4 * signal)) <= 0.5
    assert abs(shape.topk - (1 + 3 * (1 - signal))) <= 0.5
    assert shape.num_draft_tokens == shape.num_steps + 1


@given(mean=st.floats(1, 4))
def test_talon_selects_only_its_shapes(mean: float) -> None:
    assert TalonTree().select(mean) in TalonTree().shapes()


def test_talon_counts_candidates_near_the_best() -> None:
    policy, history = TalonTree(mu=0.03), AcceptHistory(HistoryOptions())
    assert policy.signal([0.9, 0.028, 0.027, 0.026], history, None) == 3.0  # 0.03 * 0.9 = 0.027
    assert policy.signal([0.9, 0.01, 0.01, 0.01], history, None) == 1.0
    assert [policy.select(k) for k in (1, 2, 3, 4)] == list(triplets("7,1,8", "6,2,8", "4,3,8", "3,4,8"))


def test_a_talon_table_longer_than_the_widest_topk_is_refused() -> None:
    with pytest.raises(ValueError, match="table of 2 shapes"):
        TalonTree(table=triplets("7,1,8", "3,1,4"))


def test_cycle_takes_a_new_shape_every_step() -> None:
    policy = CycleTree()
    seen = [policy.select(0.0) for _ in range(2 * len(policy.shapes()))]
    assert seen == [*policy.shapes(), *policy.shapes()]
    assert all(first != second for first, second in pairwise(seen))


@pytest.mark.parametrize("name", sorted(TREE_POLICIES))
def test_every_policy_selects_from_its_own_distinct_shapes(name: str) -> None:
    policy = TREE_POLICIES[name]()
    history = AcceptHistory(policy.history)
    signal = policy.signal([0.5, 0.2, 0.1, 0.1] if policy.needs_probs else [], history, None)
    assert policy.select(signal) in policy.shapes()
    assert len(set(policy.shapes())) == len(policy.shapes())


@given(steps=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1), alpha=st.floats(0.01, 1))
def test_rar_is_the_moving_average_of_the_accept_rate(steps: list[tuple[int, int]], alpha: float) -> None:
    history = AcceptHistory(HistoryOptions(alpha=alpha, rar_init=0.5))
    expected = 0.5
    for accepted, promoted in steps:
        history.update(accepted, min(accepted, promoted), num_steps=7)
        expected += alpha * (accepted / 7 - expected)
    assert history.rar == pytest.approx(expected)
    assert 0 <= history.rar <= 1


def test_rar_can_leave_promoted_drafts_out() -> None:
    history = AcceptHistory(HistoryOptions(alpha=1.0, rar_counts_promoted=False))
    history.update(accepted=3, promoted=1, num_steps=4)
    assert history.rar == 0.5


def test_the_breaker_trips_at_five_and_one_accepted_draft_releases_it() -> None:
    history, policy = AcceptHistory(HistoryOptions()), DcsTree(d=0.01)
    trips = [history.update(0, 0, 3) for _ in range(7)]
    assert trips == [False, False, False, False, True, False, False]
    assert history.breaker_trips == 1
    assert policy.signal([1.0], history, None) == 0.0
    assert policy.select(0.0) == policy.shapes()[0]
    rar = history.rar
    history.update(1, 0, 3)
    assert not history.tripped
    assert history.rar > rar
    assert policy.signal([1.0], history, None) > 0.0


def test_the_breaker_can_be_off() -> None:
    history = AcceptHistory(HistoryOptions(breaker=None))
    assert not any(history.update(0, 0, 3) for _ in range(20))
    assert not history.tripped


@given(p=UNIT, rar=UNIT, d=st.floats(0.01, 2))
def test_dcs_is_confidence_times_rar_over_d_clipped(p: float, rar: float, d: float) -> None:
    history = AcceptHistory(HistoryOptions(rar_init=rar))
    assert DcsTree(d=0.5).signal([p], history, d) == pytest.approx(min(1.0, p * rar / d))
    assert DcsTree(d=d).signal([p], history, None) == DcsTree(d=0.5).signal([p], history, d)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"alpha": 0}, "alpha=0"),
        ({"rar_init": 1.5}, "rar_init=1.5"),
        ({"breaker": 0}, "breaker=0"),
        ({"d": float("nan")}, "d=nan"),
        ({"rounding": "down"}, "half_up, half_even"),
        ({"rar_counts_promoted": 1}, "true or false"),
    ],
)
def test_dcs_options_out_of_range_are_named(values: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        DcsTree(**values)  # type: ignore[arg-type]
    assert names in str(caught.value)
