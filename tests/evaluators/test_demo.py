"""The packaged problems can be loaded, and every gold answer is right."""

from evaluators.grading import Answer, grade, is_code
from evaluators.problems import load_problems, packaged


def test_every_packaged_gold_number_is_graded_right_and_no_stub_is() -> None:
    benchmark = packaged("demo")
    answers = [
        Answer(
            "demo", problem.id, problem.gold, f"def {problem.gold}(*values):\n    return None", "stop", problem.extra
        )
        if problem.extra["kind"] == "code"
        else Answer("demo", problem.id, problem.gold, f"The answer is {problem.gold}.", "stop", problem.extra)
        for problem in load_problems(benchmark).problems
    ]
    grades = list(grade(answers, workers=2, limits={"demo": benchmark["grading"]}))
    assert [grade.correct for grade in grades] == [not is_code(answer) for answer in answers]
