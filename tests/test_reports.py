"""docs/reports.md names a test, or an answer, for every report; the tests it names exist, and no report is there twice."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| (R\d{3}) \|(.*)\|$", re.MULTILINE)
ROWS = [(number, rest.split("|")) for number, rest in ROW.findall((ROOT / "docs/reports.md").read_text("utf-8"))]
NODE = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


@cache
def functions(path: Path) -> set[str]:
    """Names of the module's own functions."""
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("number", "columns"), ROWS, ids=[number for number, _ in ROWS])
def test_a_report_has_a_test_that_exists_or_an_answer(number: str, columns: list[str]) -> None:
    source, symptom, answer, tests = (column.strip() for column in columns)
    assert source
    assert symptom
    nodes = NODE.findall(tests)
    assert re.sub(NODE, "", tests).strip("` ,") == ("" if nodes else "-"), "nothing but tests, or a dash"
    for path, name in nodes:
        assert name in functions(ROOT / path), f"{path} has no {name}"
    assert answer


def test_reports_are_there_once() -> None:
    numbers = [number for number, _ in ROWS]
    assert len(numbers) == len(set(numbers)) > 60


def test_a_report_named_by_a_test_or_a_case_is_listed() -> None:
    named = {
        f"R{digits}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in functions(path)
        for digits in re.findall(r"_r(\d{3})", name)
    }
    cases = (ROOT / "tests/evaluators/cases/reports.jsonl").read_text("utf-8").splitlines()
    named |= {json.loads(line)["report"] for line in cases}
    assert named <= {number for number, _ in ROWS}
