"""Every answer whose verdict is known is judged so, and what we miss is never accepted by mistake."""

from collections.abc import Callable
from typing import Any

import pytest

from evaluators.grading import Grade

Case = dict[str, Any]
Reader = Callable[[str], list[Case]]
Grader = Callable[[list[Case]], list[Grade]]


@pytest.mark.parametrize("name", ["reports.jsonl", "public.jsonl", "neighbours.jsonl", "programs.jsonl"])
def test_verdicts_are_those_of_a_careful_person(name: str, read_cases: Reader, grade_cases: Grader) -> None:
    cases = [case for case in read_cases(name) if not case.get("known_miss")]
    grades = grade_cases(cases)
    assert len(grades) == len(cases) > 0
    wrong = [
        (case.get("report"), case["gold"], case["output"][:100], grade.extracted, grade.reason)
        for case, grade in zip(cases, grades, strict=True)
        if grade.correct != case["right"] or grade.ungradable
    ]
    assert wrong == []


def test_known_misses_are_misses(read_cases: Reader, grade_cases: Grader) -> None:
    """An answer that we learn to read leaves this list, and the table in docs/grading.md."""
    cases = [case for name in ("neighbours.jsonl", "programs.jsonl") for case in read_cases(name)]
    missed = [case for case in cases if case.get("known_miss")]
    assert missed
    assert [grade.correct for grade in grade_cases(missed)] == [False] * len(missed)


def test_grades_come_in_the_order_of_the_answers(read_cases: Reader, grade_cases: Grader) -> None:
    cases = [*read_cases("neighbours.jsonl")[:5], *read_cases("programs.jsonl")[:5]][::-1]
    assert [grade.item for grade in grade_cases(cases)] == [str(number) for number in range(10)]
