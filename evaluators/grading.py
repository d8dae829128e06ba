"""Grade answers: right or wrong by a careful grader, and what the paper-compatible one would have said.

python -m evaluators.grade answers.jsonl
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import pebble
from omegaconf import OmegaConf

from evaluators import maths, sandbox
from evaluators.thinking import strip_thinking

GRADER_VERSION = "1"

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
    """The problem's `extra`; `in_thought`: true where the prompt ended inside a reasoning block."""


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


@dataclass(frozen=True)
class Verdict:
    """What one grader says of one answer."""

    correct: bool
    extracted: str | None
    reason: str
    ungradable: bool = False


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
    with ThreadPoolExecutor(workers) as programs, pebble.ProcessPool(workers) as formulas:
        futures: list[tuple[Answer, Future[Verdict]]] = []
        for answer in answers:
            limit = limits[answer.benchmark]
            if is_code(answer):
                futures.append((answer, programs.submit(grade_code, answer, limit, allow_unconfined)))
            else:
                futures.append((answer, formulas.schedule(grade_math, args=[answer], timeout=limit["math_s"])))
        for answer, future in futures:
            yield _grade(answer, future)


def packaged_limits(benchmark: str) -> Limits:
    """The `grading` node of conf/benchmark/NAME.yaml."""
    text = (resources.files("conf") / "benchmark" / f"{benchmark}.yaml").read_text(encoding="utf-8")
    node: Limits = OmegaConf.create(text).grading
    return node


def is_code(answer: Answer) -> bool:
    """Whether the answer is a program."""
    return answer.benchmark == "humaneval" or answer.extra.get("kind") == "code"


def grade_code(answer: Answer, limits: Limits, allow_unconfined: bool) -> Verdict:
    """Run the program against its tests."""
    text = strip_thinking(answer.output, opened=bool(answer.extra.get("in_thought")))
    if answer.benchmark == "humaneval":
        entry_point = answer.extra["entry_point"]
        tests = answer.extra["test"] + "\ncheck(candidate)\n"
        task = sandbox.Task(text, entry_point, tests, answer.extra["prompt"])
    else:
        task = sandbox.Task(text, answer.gold, answer.extra["tests"])
    verdict = sandbox.run(task, limits, allow_unconfined=allow_unconfined)
    return Verdict(verdict == "passed", text or None, verdict)


def grade_math(answer: Answer) -> Verdict:
    """Compare the final answer with the gold one."""
    text = strip_thinking(answer.output, opened=bool(answer.extra.get("in_thought")))
    correct, extracted, reason = maths.judge(text, answer.gold, numeric=answer.benchmark != "math500")
    return Verdict(correct, extracted, reason)


def _grade(answer: Answer, future: "Future[Verdict]") -> Grade:
    try:
        verdict = future.result()
    except TimeoutError:
        verdict = Verdict(False, None, "timeout")
    return Grade(
        answer.id,
        verdict.correct,
        verdict.ungradable,
        verdict.extracted,
        verdict.reason,
        None,
        None,
        GRADER_VERSION,
    )
