"""Grades come in order, and a wrong answer never passes."""

from evaluators.grading import Answer, grade


def test_numbers_and_programs_are_graded_in_order() -> None:
    code = {"kind": "code", "tests": "assert double(2) == 4"}
    answers = [
        Answer("demo", "demo/word/0", "42", "So there are 42.", "stop", {"kind": "word"}),
        Answer("demo", "demo/code/0", "double", "```python\ndef double(x):\n    return 2 * x\n```", "stop", code),
        Answer("demo", "demo/code/1", "double", "```python\ndef double(x):\n    return 3 * x\n```", "stop", code),
        Answer("demo", "demo/arithmetic/0", "42", "41", "stop", {"kind": "arithmetic"}),
    ]
    grades = list(grade(answers, workers=2))
    assert [grade.item for grade in grades] == [answer.id for answer in answers]
    assert [grade.correct for grade in grades] == [True, True, False, False]
