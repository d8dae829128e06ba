"""Each metric's definition, on inputs whose right answer is known; the ids are those of reports by other projects' users."""

from datetime import UTC, datetime

import pytest

from analysis import metrics, tracking
from analysis.arms import Study
from analysis.records import id_digits
from analysis.stats import Estimate
from analysis.summary import summary
from runners.measure import measure
from tests.analysis.synthetic import Item, Spec, write_cell


def test_r007_one_counter_for_both_arms(tmp_path) -> None:
    for method, seconds in (("vanilla", 2.0), ("eagle3", 1.0)):
        write_cell(tmp_path, Spec(method, [Item(tokens=100, steps=40, latency_s=seconds)] * 5))
    study = Study.load(tmp_path)
    speedups = [study.speedup(arm) for arm in study.arms if arm.record.algorithm]
    assert [getattr(figure, "value", None) for figure in speedups] == [2.0]


def test_r021_the_bonus_token_is_in_tau_and_not_in_accepted_drafts(tmp_path) -> None:
    write_cell(tmp_path, Spec("eagle3", [Item(tokens=1 + 290, steps=100)]))
    frame = Study.load(tmp_path).arms[0].cells[0].frame
    assert metrics.committed_per_step(frame) == pytest.approx(2.90)
    assert metrics.accepted_per_step(frame) == pytest.approx(1.90)
    assert metrics.tau(frame) == pytest.approx(291 / 100), "the engine's ratio of sums counts the prefill's token too"


def test_r024_lengths_that_hold_the_bonus_token_are_not_given_another() -> None:
    accepted = [length - 1 for length in (3, 4, 2)]
    assert metrics.histogram_tau(metrics.histogram_of(accepted)) == 3.0


def test_r026_drafted_tokens_follow_the_shape_of_each_step() -> None:
    assert metrics.drafted_tokens({(7, 1, 8): 10}) == 70
    assert metrics.drafted_tokens({(3, 4, 4): 10}) == 30
    assert metrics.drafted_tokens({(3, 4, 8): 10}) == 70


def test_r036_histogram_and_tau() -> None:
    histogram = metrics.histogram_of([0, 3, 3, 1])
    assert histogram == {0: 1, 1: 1, 3: 2}
    assert metrics.histogram_tau(histogram) == 2.75
    assert metrics.acceptance_by_depth(histogram) == {1: 0.75, 2: 0.5, 3: 0.5}


def test_r067_the_order_of_keys_does_not_change_an_id() -> None:
    assert id_digits({"a": 1, "b": {"c": 2, "d": 3}}) == id_digits({"b": {"d": 3, "c": 2}, "a": 1})
    assert id_digits({"a": 1}) != id_digits({"a": 2})


def test_r034_table_and_record_show_one_number(tmp_path) -> None:
    """All tokens over the whole request: the window begins when it is sent, so the first token belongs to it."""
    write_cell(tmp_path, Spec("vanilla", [Item(tokens=128, latency_s=2.8)] * 3))
    study = Study.load(tmp_path)
    arm = study.arms[0]
    table = summary(study)
    assert table.rows[0][table.header.index("tok/s")] == "45.7"
    for value in (
        arm.throughput_tok_s,
        arm.record.metrics["throughput_tok_s"],
        tracking.summary_of(study, arm, arm.cells[0])["throughput_tok_s"],
        measure(list(arm.record.generations()), list(arm.record.grades()), 3, 1)["throughput_tok_s"],
    ):
        assert value == pytest.approx(128 / 2.8)


def interrupted(cell) -> None:
    """Two requests at once; after the first four a kill, and an hour later another server. Latencies are no round numbers."""
    for index, line in enumerate(cell.lines):
        begin = datetime(2026, 11, 30, hour=index // 4, second=index % 4 // 2, tzinfo=UTC)
        line.update(server=f"server-{index // 4}", started_at=begin.isoformat(timespec="milliseconds"))
    record = cell.record
    record["metrics"] = measure(cell.lines, cell.grades, len(cell.lines), record["cell"]["engine"]["concurrency"])


def test_a_pause_between_servers_slows_no_arm_above_concurrency_1(tmp_path) -> None:
    for method, seconds in (("vanilla", 1 / 3), ("eagle3", 1 / 7)):
        write_cell(tmp_path, Spec(method, [Item(latency_s=seconds)] * 8, engine={"concurrency": 2}), interrupted)
    study = Study.load(tmp_path)
    assert not study.problems
    vanilla, eagle3 = sorted(study.arms, key=lambda arm: arm.record.method, reverse=True)
    assert vanilla.throughput_tok_s == pytest.approx(8 * 41 / (2 * (1 + 1 / 3)), rel=1e-5)
    speedup = study.speedup(eagle3)
    assert isinstance(speedup, Estimate)
    assert speedup.value == pytest.approx((1 + 1 / 3) / (1 + 1 / 7), rel=1e-5)


def test_a_throughput_over_the_pause_has_no_row(tmp_path) -> None:
    def slowed(cell) -> None:
        interrupted(cell)
        cell.record["metrics"]["throughput_tok_s"] = 8 * 41 / 3601

    write_cell(tmp_path, Spec("vanilla", [Item()] * 8, engine={"concurrency": 2}), slowed)
    (problem,) = Study.load(tmp_path).problems
    assert "METRICS throughput_tok_s: 0.09" in problem.reason


def test_step_cost_and_tau_make_the_speedup() -> None:
    assert metrics.step_cost(tau_value=3.0, speedup=2.0) == 1.5
    assert metrics.recovery_percent(0.5, 0.4) == pytest.approx(125.0)
    with pytest.raises(ZeroDivisionError):
        metrics.recovery_percent(0.5, 0.0)


def test_recovery_is_over_the_same_items_failed_ones_included(tmp_path) -> None:
    right, wrong = Item(), Item(correct=False)
    write_cell(tmp_path, Spec("eagle3", [right] * 8 + [wrong] * 2))
    write_cell(tmp_path, Spec("vanilla", [right] * 10))

    def lose_last(cell) -> None:
        del cell.lines[-1], cell.grades[-1]
        cell.record["metrics"].update(n_failed=1, output_tokens=9 * 41, prompt_tokens=9 * 20, accuracy=0.6)

    write_cell(tmp_path, Spec("lossy", [right] * 6 + [wrong] * 4), lose_last)
    study = Study.load(tmp_path)
    assert not study.problems
    lossy = next(arm for arm in study.arms if arm.record.method == "lossy")
    recovery = study.recovery(lossy)
    assert isinstance(recovery, Estimate)
    assert recovery.value == pytest.approx(100 * 6 / 8)
