"""Grade answers: right or wrong by a careful grader, and what the paper-compatible one would have said.

How it works, its conventions and its known misses: docs/grading.md.

    python -m evaluators.grade answers.jsonl
"""

import multiprocessing
import resource
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pebble

from evaluators import maths, sandbox, specforge
from evaluators.problems import packaged
from evaluators.thinking import strip_thinking

# To be raised with every change that can change a grade: finished cells are then graded anew (evaluators.regrade).
GRADER_VERSION = "3"

Limits = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """One output to grade."""

    benchmark: str
    id: str
    gold: str
    """The right answer; humaneval: the task's id; demo code: the function's name."""
    output: str
    finish_reason: str | None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """The problem's `extra`; besides, `in_thought`: true where the prompt ends inside a reasoning block."""


@dataclass(frozen=True)
class Verdict:
    """What the grader says, and the paper-compatible one beside it."""

    correct: bool
    extracted: str | None
    reason: str
    ungradable: bool = False
    paper_correct: bool | None = None
    paper_extracted: str | None = None


@dataclass(frozen=True)
class Grade:
    """A line of grades.jsonl (docs/data.md)."""

    item: str
    correct: bool
    ungradable: bool
    extracted: str | None
    reason: str
    paper_correct: bool | None
    paper_extracted: str | None
    grader_version: str


def grade(
    answers: Sequence[Answer],
    *,
    workers: int,
    allow_unconfined: bool = False,
    limits: Mapping[str, Limits] | None = None,
) -> Iterator[Grade]:
    """Grade in parallel, in order, each answer within its limits; raises SandboxError where code cannot be confined.

    `limits`: the `grading` node of conf/benchmark by benchmark name; None takes the packaged ones.
    """
    limits = limits or {name: packaged_limits(name) for name in {answer.benchmark for answer in answers}}
    if any(is_code(answer) for answer in answers):
        sandbox.require(allow_unconfined=allow_unconfined)
    # A few answers are done before a second process has started, which would then end with a traceback on the screen.
    n_processes = min(workers, 1 + sum(not is_code(answer) for answer in answers) // 16)
    with ThreadPoolExecutor(workers) as programs, _formula_workers(n_processes, limits) as formulas:
        futures: list[Future[Verdict]] = []
        for answer in answers:
            limit = limits[answer.benchmark]
            if is_code(answer):
                futures.append(programs.submit(grade_code, answer, limit))
            else:
                futures.append(formulas.schedule(grade_math, args=[answer], timeout=limit["math_s"]))
        for answer, future in zip(answers, futures, strict=True):
            yield Grade(item=answer.id, grader_version=GRADER_VERSION, **vars(_verdict(answer, future)))


def packaged_limits(benchmark: str) -> Limits:
    """The `grading` node of conf/benchmark/NAME.yaml."""
    limits: Limits = packaged(benchmark)["grading"]
    return limits


def is_code(answer: Answer) -> bool:
    """Whether the answer is a program."""
    return answer.benchmark == "humaneval" or answer.extra.get("kind") == "code"


def grade_code(answer: Answer, limits: Limits) -> Verdict:
    """Run the program against its tests."""
    text, extra = _graded_text(answer), answer.extra
    if answer.benchmark != "humaneval":
        outcome = sandbox.run(sandbox.Task(text, answer.gold, extra["tests"]), limits)
        return Verdict(outcome.verdict == "passed", outcome.program, outcome.verdict)
    task = sandbox.Task(text, extra["entry_point"], extra["test"] + "\ncheck(candidate)\n", extra["prompt"])
    outcome = sandbox.run(task, limits)
    code = specforge.humaneval_code(answer.output, extra["prompt"], extra["entry_point"])
    script = specforge.humaneval_script(code, extra["entry_point"], extra["test"], legacy=limits["paper_legacy"])
    paper = sandbox.run_script(script, limits)
    return Verdict(outcome.verdict == "passed", outcome.program, outcome.verdict, False, paper == "passed", code)


def grade_math(answer: Answer) -> Verdict:
    """Compare the final answer with the gold one."""
    if not answer.gold.strip():
        return Verdict(False, None, "no gold answer", ungradable=True)
    return Verdict(*maths.judge(_graded_text(answer), answer.gold, numeric=answer.benchmark != "math500"))


def _graded_text(answer: Answer) -> str:
    return strip_thinking(answer.output, opened=bool(answer.extra.get("in_thought")))


def _formula_workers(workers: int, limits: Mapping[str, Limits]) -> pebble.ProcessPool:
    """Processes that can be killed: neither the parser nor sympy can be interrupted otherwise."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["evaluators.maths"])
    mib = max(int(limit["memory_mib"]) for limit in limits.values())
    return pebble.ProcessPool(workers, context=context, initializer=_limit_memory, initargs=[mib << 20])


def _limit_memory(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _verdict(answer: Answer, future: "Future[Verdict]") -> Verdict:
    """A program or formula that does not end in time is wrong; a grader that breaks has not judged."""
    try:
        verdict = future.result()
    except TimeoutError:
        verdict = Verdict(False, None, "timeout")
    except MemoryError:
        verdict = Verdict(False, None, "out of memory")
    except Exception as error:  # whatever it was, the other answers are to be graded
        verdict = Verdict(False, None, f"grader failed: {type(error).__name__}: {error}"[:300], ungradable=True)
    if answer.benchmark in PAPER_GRADERS:
        correct, extracted = PAPER_GRADERS[answer.benchmark](answer.output, answer.gold)
        return replace(verdict, paper_correct=correct, paper_extracted=extracted)
    return verdict


PAPER_GRADERS = {"gsm8k": specforge.gsm8k, "math500": specforge.math500}
