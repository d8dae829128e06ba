"""Token-identical or not, and then near-tie or violation; never a verdict over arms that differ in more than the method."""

import json

import pytest

from analysis.arms import Study
from analysis.lossless import compare_outputs, first_difference, judge, main
from analysis.records import Record, load
from tests.analysis.synthetic import END, Item, Spec, write_cell

LONG = tuple(range(10, 110))


def outputs(tail: int = END) -> list[Item]:
    return [Item(ids=(*LONG[:-1], 50, END), steps=40)] * 5 + [Item(ids=(*LONG[:-1], tail, END), steps=40)]


def pair(
    tmp_path, method: str = "eagle3", tail: int = 51, gap: float | None = None, dtype: str = "bfloat16", **changes
) -> tuple[Record, Record]:
    vanilla = write_cell(tmp_path, Spec("vanilla", outputs(51), engine={"dtype": dtype}))
    arm = write_cell(tmp_path, Spec(method, outputs(tail), **{"engine": {"dtype": dtype}, **changes}))
    if gap is not None:
        line = {"item": "demo/5", "position": len(LONG) - 1, "gap_nats": gap}
        (tmp_path / arm / "lossless.jsonl").write_text(json.dumps(line) + "\n")
    by_id = {record.cell_id: record for record in load(tmp_path).records}
    return by_id[arm], by_id[vanilla]


def test_equal_outputs_are_identical(tmp_path) -> None:
    assert judge(*pair(tmp_path)).word == "identical"


def test_r052_a_late_difference_is_seen(tmp_path) -> None:
    verdict = judge(*pair(tmp_path, tail=52))
    assert verdict.word == "unknown"
    assert [(one.item, one.position) for one in verdict.differing] == [("demo/5", len(LONG) - 1)]


@pytest.mark.parametrize(("gap", "word"), [(0.03, "near-ties only"), (0.5, "violation")])
def test_the_top2_gap_tells_near_tie_from_violation(tmp_path, gap: float, word: str) -> None:
    assert judge(*pair(tmp_path, tail=52, gap=gap)).word == word


@pytest.mark.parametrize(("settings", "word"), [(0.01, "violation"), (0.3, "near-ties only"), (None, "near-ties only")])
def test_the_runs_own_tolerance_counts_else_confs(tmp_path, settings: float | None, word: str) -> None:
    config = {} if settings is None else {"lossless": {"check": True, "near_tie_nats": settings}}
    assert judge(*pair(tmp_path, tail=52, gap=0.2, provenance={"config": config})).word == word
    assert main(["--results", str(tmp_path)]) == (word == "violation"), "the command alone judges as the run did"


@pytest.mark.parametrize(("gap", "word"), [(0.0005, "near-ties only"), (0.002, "violation"), (None, "unknown")])
def test_in_float32_a_near_tie_is_one_within_its_rounding(tmp_path, gap: float | None, word: str) -> None:
    assert judge(*pair(tmp_path, tail=52, gap=gap, dtype="float32"), near_tie_nats=0.3).word == word
    assert main(["--results", str(tmp_path), "--near-tie-nats", "0.3"]) == (word == "violation")


def test_a_gap_at_another_position_says_nothing(tmp_path) -> None:
    arm, vanilla = pair(tmp_path, tail=52)
    (arm.folder / "lossless.jsonl").write_text(json.dumps({"item": "demo/5", "position": 3, "gap_nats": 0.0}) + "\n")
    assert judge(arm, vanilla).word == "unknown"


def test_r050_outputs_of_different_length_are_never_equal() -> None:
    assert first_difference([1, 2, 3], [1, 2]) == 2
    verdict = compare_outputs({"a": [1, 2, 3]}, {"a": [1, 2]}, {}, 0.1)
    assert verdict.word == "unknown"
    assert "DIFFERENT LENGTH 3 against 2" in verdict.differing[0].detail


def test_r050_lists_of_different_length_are_never_equal() -> None:
    ours = {"a": [1], "b": [1], "c": [1]}
    verdict = compare_outputs(ours, {"a": [1], "b": [1]}, {}, 0.1)
    assert verdict.word == "violation"
    assert verdict.differing[0].item == "c"


def test_r054_no_verdict_where_more_than_the_method_differs(tmp_path) -> None:
    verdict = judge(*pair(tmp_path, engine={"tp_size": 2}))
    assert (verdict.word, verdict.reason) == ("refused", "engine.tp_size: 2 against 1")


def test_a_lossy_arm_gets_no_verdict(tmp_path) -> None:
    assert judge(*pair(tmp_path, method="lossy")).word == "refused"


def test_r052_a_strict_arm_with_other_answers_has_no_speed_row(tmp_path) -> None:
    pair(tmp_path, tail=52, gap=0.5)
    study = Study.load(tmp_path)
    assert [arm.record.method for arm in study.arms] == ["vanilla"]
    assert "NOT_LOSSLESS 1/6 outputs differ" in study.problems[0].reason


def test_a_near_tie_keeps_its_row_and_is_said(tmp_path) -> None:
    pair(tmp_path, tail=52, gap=0.01)
    flags = [flag for arm in Study.load(tmp_path).arms for flag in arm.flags]
    assert [(flag.code, flag.fatal) for flag in flags] == [("DIVERGED", False)]


def test_command_line(tmp_path, capsys) -> None:
    pair(tmp_path, tail=52, gap=0.03)
    assert main(["--results", str(tmp_path)]) == 0
    assert "5/6" in capsys.readouterr().out
    assert main(["--results", str(tmp_path), "--near-tie-nats", "0.02"]) == 1
    assert "violation" in capsys.readouterr().out
    assert main(["--results", str(tmp_path / "none")]) == 1
