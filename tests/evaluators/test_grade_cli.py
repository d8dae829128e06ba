"""`python -m evaluators.grade` and `python -m evaluators.regrade`."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluators import maths
from evaluators.grading import GRADER_VERSION, Answer, grade
from evaluators.problems import load_problems
from evaluators.regrade import regrade

DEMO = [
    {"id": "demo/word/0", "kind": "word", "question": "2 + 2?", "gold": "4"},
    {"id": "demo/word/1", "kind": "word", "question": "2 + 3?", "gold": "5"},
    {"id": "demo/arithmetic/0", "kind": "arithmetic", "question": "7 * 6 =", "gold": "42"},
    {"id": "demo/arithmetic/1", "kind": "arithmetic", "question": "1 - 9 =", "gold": "-8"},
    {"id": "demo/code/0", "kind": "code", "question": "Double.", "gold": "double", "tests": "assert double(2) == 4"},
    {"id": "demo/code/1", "kind": "code", "question": "Halve.", "gold": "halve", "tests": "assert halve(4) == 2"},
]
OUTPUTS = [
    "It is 4.",
    "6",
    "42",
    "8",
    "def double(x):\n    return 2 * x\n",
    "```python\ndef halve(x):\n    return x\n```",
]
RIGHT = [True, False, True, False, True, False]


def run(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evaluators.grade", str(path), "--workers", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_one_line_out_for_each_line_in(tmp_path: Path) -> None:
    lines = [
        {"benchmark": "gsm8k", "id": "a", "gold": "18", "output": "#### 18"},
        {"benchmark": "humaneval", "id": "b", "gold": "HumanEval/53", "output": "    return x + y\n"},
        {"benchmark": "math500", "id": "c", "gold": "\\frac{1}{2}", "output": "\\boxed{0.4}"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run(path)
    assert (result.returncode, result.stderr) == (0, "")
    graded = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["id"], line["correct"], line["extracted"]) for line in graded] == [
        ("a", True, "18"),
        ("b", True, graded[1]["extracted"]),
        ("c", False, "0.4"),
    ]
    assert all(set(line) == {"id", "correct", "extracted", "reason"} for line in graded)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1"),
        ('{"benchmark": "gsm8k", "id": "a", "gold": "1"}', "'output'.*expected a JSON object with benchmark"),
        ('{"benchmark": "gsm8k", "id": "a", "gold": 1, "output": "1"}', "gold is 1: expected a string"),
        ('{"benchmark": "mbpp", "id": "a", "gold": "1", "output": "1"}', "'mbpp' is unknown.*gsm8k"),
        ('{"benchmark": "humaneval", "id": "a", "gold": "1", "output": "1"}', "'1' is no task of HumanEval"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line + "\n")
    result = run(path)
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert re.search(message, result.stderr)


def answers() -> list[Answer]:
    return [
        Answer(
            "demo", row["id"], row["gold"], output, "stop", {key: row[key] for key in ("kind", "tests") if key in row}
        )
        for row, output in zip(DEMO, OUTPUTS, strict=True)
    ]


def test_the_demo_problems_are_graded_by_kind(limits: dict[str, dict[str, Any]]) -> None:
    grades = list(grade(answers(), workers=2, limits=limits))
    assert [grade.correct for grade in grades] == RIGHT
    assert {(grade.paper_correct, grade.ungradable) for grade in grades} == {(None, False)}


def test_without_a_gold_answer_nothing_is_graded(limits: dict[str, dict[str, Any]]) -> None:
    [result] = grade([Answer("gsm8k", "a", "", "5", None)], workers=1, limits=limits)
    assert (result.correct, result.ungradable) == (False, True)


def test_what_never_ends_is_wrong_within_its_time(limits: dict[str, dict[str, Any]]) -> None:
    limits["math500"] = {"math_s": 2, "memory_mib": 2048}
    tower = Answer("math500", "a", "7", "\\boxed{9^{9^{9^9}}}", None)
    plain = Answer("math500", "b", "7", "\\boxed{7}", None)
    results = list(grade([tower, plain], workers=1, limits=limits))
    assert [(result.correct, result.ungradable) for result in results] == [(False, False), (True, False)]
    assert results[0].reason in ("timeout", "out of memory")


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    """A finished cell of an older grader, which had judged everything wrong."""
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps(row) + "\n" for row in DEMO))
    source = {"kind": "demo", "count": None, "sha256": None}
    benchmark = {
        "name": "demo",
        "source": source,
        "path": str(problems),
        "limit": 6,
        "sample": "first",
        "protocols": {},
    }
    programs = {"cpu_s": 1, "wall_s": 6, "memory_mib": 2048, "output_mib": 1, "math_s": 5}
    benchmark |= {"sample_seed": 0, "protocol": "default", "grading": programs}
    folder = tmp_path / "runs" / "vanilla-demo"
    folder.mkdir(parents=True)
    generations = [
        {"item": row["id"], "index": index, "text": output, "finish_reason": "stop"}
        for index, (row, output) in enumerate(zip(DEMO, OUTPUTS, strict=True))
    ]
    grades = [
        {"item": row["id"], "correct": False, "ungradable": False, "paper_correct": None, "grader_version": "0"}
        for row in DEMO
    ]
    write_lines(folder / "generations.jsonl", generations)
    write_lines(folder / "grades.jsonl", grades)
    sha256 = load_problems(benchmark).sha256
    record = {
        "cell_id": folder.name,
        "cell": {"benchmark": {"name": "demo", "data_sha256": sha256}},
        "metrics": {
            "n_items": 6,
            "n_failed": 0,
            "accuracy": 0.0,
            "accuracy_paper": None,
            "n_ungradable": 0,
            "tau": 2.5,
        },
        "provenance": {"config": {"benchmark": benchmark}},
    }
    (folder / "record.json").write_text(json.dumps(record))
    return folder


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_finished_cell_is_graded_anew_and_its_old_grades_are_kept(cell: Path) -> None:
    before = json.loads((cell / "record.json").read_text())["metrics"]
    old, outputs = (cell / "grades.jsonl").read_text(), (cell / "generations.jsonl").read_bytes()
    assert "3 verdicts changed, accuracy 0.0000 -> 0.5000" in regrade(cell, {}, workers=2)
    assert (cell / "grades.0.jsonl").read_text() == old
    assert (cell / "generations.jsonl").read_bytes() == outputs
    lines = [json.loads(line) for line in (cell / "grades.jsonl").read_text().splitlines()]
    assert [line["correct"] for line in lines] == RIGHT
    assert {line["grader_version"] for line in lines} == {GRADER_VERSION}
    metrics = json.loads((cell / "record.json").read_text())["metrics"]
    assert metrics == {**before, "accuracy": 0.5}


def test_a_cell_of_this_version_is_left_as_it_is(cell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regrade(cell, {}, workers=2)
    files = {path.name: path.read_bytes() for path in cell.glob("*.json*")}
    monkeypatch.setattr(maths, "judge", None)
    assert "0 verdicts changed" in regrade(cell, {}, workers=2)
    assert {path.name: path.read_bytes() for path in cell.glob("*.json*")} == files


@pytest.mark.parametrize("version", ["0", GRADER_VERSION])
def test_lost_grades_are_made_again(cell: Path, version: str) -> None:
    """Of the fixture's six outputs, the lines of two are missing; the rest are the first verdicts of either version."""
    regrade(cell, {}, workers=2)
    lines = [json.loads(line) for line in (cell / "grades.jsonl").read_text().splitlines()]
    write_lines(cell / "grades.jsonl", [{**line, "grader_version": version} for line in lines[2:]])
    told = "0 verdicts changed and 2 given for the first time, accuracy 0.5000 -> 0.5000"
    assert told in regrade(cell, {}, workers=2)
    assert [json.loads(line) for line in (cell / "grades.jsonl").read_text().splitlines()] == lines


@pytest.mark.parametrize("left", [None, b"", b'{"item": "demo/0", "reas\xc3'])
def test_a_missing_or_torn_file_of_grades_is_no_grades(cell: Path, left: bytes | None) -> None:
    (cell / "grades.jsonl").unlink()
    if left is not None:
        (cell / "grades.jsonl").write_bytes(left)
    assert "6 given for the first time, accuracy 0.0000 -> 0.5000" in regrade(cell, {}, workers=2)
    lines = [json.loads(line) for line in (cell / "grades.jsonl").read_text().splitlines()]
    assert [line["correct"] for line in lines] == RIGHT
    assert [path.read_bytes() for path in cell.glob("grades.*.jsonl")] == ([] if left is None else [left])


@pytest.mark.parametrize("left", [None, "{", ""])
def test_outputs_that_are_lost_are_named_and_not_graded_as_wrong(cell: Path, left: str | None) -> None:
    (cell / "generations.jsonl").unlink()
    if left is not None:
        (cell / "generations.jsonl").write_text(left)
    with pytest.raises(ValueError, match=r"generations\.jsonl: expected the 6 outputs .* found 0.* run the cell again"):
        regrade(cell, {}, workers=2)


def test_other_settings_grade_anew_and_are_recorded(cell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regrade(cell, {}, workers=2)
    benchmark = json.loads((cell / "record.json").read_text())["provenance"]["config"]["benchmark"]
    longer = {**benchmark["grading"], "math_s": 6}
    used = []
    monkeypatch.setattr(
        "evaluators.regrade.grade", lambda *_, **options: used.append(options["limits"]) or grade(*_, **options)
    )
    for _ in range(2):  # the second call finds all done
        assert "accuracy 0.5000 -> 0.5000" in regrade(cell, {}, workers=2, settings=longer)
    assert used == [{"demo": longer}]
    record = json.loads((cell / "record.json").read_text())
    assert record["provenance"]["config"]["benchmark"] == {**benchmark, "grading": longer}
    assert {path.name for path in cell.glob("grades.*.jsonl")} == {"grades.0.jsonl", f"grades.{GRADER_VERSION}.jsonl"}


def test_other_problems_than_the_cells_own_are_refused(cell: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    write_lines(other, DEMO[:5])
    before = shutil.copytree(cell, tmp_path / "before")
    with pytest.raises(ValueError, match="was run on problems with the checksum"):
        regrade(cell, {"demo": str(other)}, workers=2)
    assert (cell / "grades.jsonl").read_bytes() == (before / "grades.jsonl").read_bytes()
