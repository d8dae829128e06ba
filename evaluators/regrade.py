"""Grade finished cells anew, after the grader changed or grades were lost; needs no engine and makes no output again.

The old grades stay beside the new ones as grades.<version>.jsonl, and record.json gets the new accuracy.

    python -m evaluators.regrade results/runs --path gsm8k=gsm8k_test.jsonl
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from evaluators.grading import GRADER_VERSION, Answer, grade
from evaluators.problems import Problem, ProblemError, load_problems, packaged
from evaluators.sandbox import SandboxError

Line = dict[str, Any]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results_dir", type=Path)
    parser.add_argument("--path", action="append", default=[], metavar="BENCHMARK=FILE", help="problems from a file")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--allow-unconfined", action="store_true", help="see evaluators.grade")
    arguments = parser.parse_args()
    paths = dict(item.partition("=")[::2] for item in arguments.path)
    records = sorted(arguments.results_dir.glob("*/record.json"))
    if not records:
        sys.exit(f"evaluators.regrade: {arguments.results_dir} holds no finished cell (no */record.json).")
    try:
        for record in records:
            options = {"workers": arguments.workers, "allow_unconfined": arguments.allow_unconfined}
            print(regrade(record.parent, paths, **options), flush=True)
    except (ProblemError, SandboxError) as error:
        sys.exit(f"evaluators.regrade: {error}")


def regrade(
    folder: Path,
    paths: Mapping[str, str],
    *,
    workers: int,
    allow_unconfined: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Have all outputs of one cell graded by this version and say what changed; raises ProblemError, SandboxError.

    `paths`: files of problems by benchmark name, for those that the cell's own configuration does not find.
    `settings`: another `benchmark.grading` than the one it was graded with.
    """
    with FileLock(folder / ".lock"):
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        new = old = grades(folder)
        generations = _generations(folder, record["metrics"]["n_items"] - record["metrics"]["n_failed"])
        benchmark = _benchmark(record, paths)
        settings = settings or benchmark["grading"]
        incomplete = [line["item"] for line in old] != [line["item"] for line in generations]
        if settings != benchmark["grading"] or incomplete or versions(old) != {GRADER_VERSION}:
            answers = _answers(record, generations, paths)
            limits = {benchmark["name"]: settings}
            graded = grade(answers, workers=workers, allow_unconfined=allow_unconfined, limits=limits)
            new = [asdict(result) for result in graded]
            _keep(folder, old[0]["grader_version"] if old else "torn")
            _write(folder / "grades.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in new))
        before = dict(record["metrics"])
        if settings != benchmark["grading"]:
            record["provenance"]["config"]["benchmark"]["grading"] = settings
        record["metrics"] |= accuracies(new, record["metrics"]["n_items"])
        _write(folder / "record.json", json.dumps(record, indent=1, ensure_ascii=False))
    verdicts = {line["item"]: (line["correct"], line["paper_correct"]) for line in old}
    judged = [(line["correct"], line["paper_correct"]) != verdicts.get(line["item"]) for line in new]
    changed, added = sum(judged), sum(line["item"] not in verdicts for line in new)
    shown = [
        f"{name} {before[name]:.4f} -> {record['metrics'][name]:.4f}"
        for name in ("accuracy", "accuracy_paper")
        if None not in (before[name], record["metrics"][name])
    ]
    first = f" and {added} given for the first time" if added else ""
    return f"{folder.name}: {changed - added} verdicts changed{first}, {', '.join(shown)}"


def grades(folder: Path) -> list[Line]:
    """The lines of a cell's grades.jsonl; none where it is missing or torn: grades can be made again."""
    try:
        return _lines(folder / "grades.jsonl")
    except (FileNotFoundError, ValueError):
        return []


def versions(grades: Sequence[Line]) -> set[str]:
    """The grader's versions that made these grades."""
    return {line["grader_version"] for line in grades}


def accuracies(grades: Sequence[Line], n_items: int) -> Line:
    """The metrics of record.json that follow from the grades (docs/data.md)."""
    papers = [line["paper_correct"] for line in grades if line["paper_correct"] is not None]
    return {
        "n_ungradable": sum(line["ungradable"] for line in grades),
        "accuracy": sum(line["correct"] for line in grades) / n_items,
        "accuracy_paper": sum(papers) / n_items if papers else None,
    }


def _benchmark(record: Line, paths: Mapping[str, str]) -> Line:
    """The benchmark's configuration: the run's own where it is of this benchmark, else the packaged one; all problems."""
    name = record["cell"]["benchmark"]["name"]
    node = record["provenance"]["config"].get("benchmark", {})
    if node.get("name") != name:
        node = packaged(name)
    return {**node, "limit": None, "path": paths.get(name, node["path"])}


def _answers(record: Line, generations: Sequence[Line], paths: Mapping[str, str]) -> list[Answer]:
    benchmark = _benchmark(record, paths)
    loaded = load_problems(benchmark)
    expected = record["cell"]["benchmark"]["data_sha256"]
    if loaded.sha256 != expected:
        raise ProblemError(
            f"{record['cell_id']} was run on problems with the checksum {expected}, {loaded.source} has "
            f"{loaded.sha256}: pass the right ones with --path {benchmark['name']}=FILE."
        )
    problems = {problem.id: problem for problem in loaded.problems}
    return [_answer(benchmark["name"], line, problems[line["item"]]) for line in generations]


def _answer(benchmark: str, line: Line, problem: Problem) -> Answer:
    extra = {**problem.extra, "in_thought": line.get("in_thought", False)}
    return Answer(benchmark, line["item"], problem.gold, line["text"], line["finish_reason"], extra)


def _lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def _generations(folder: Path, count: int) -> list[Line]:
    """The cell's outputs; raises ProblemError where some are lost, which would lower the accuracy as if they were wrong."""
    path = folder / "generations.jsonl"
    try:
        lines, fault = _lines(path), ""
    except (FileNotFoundError, ValueError) as error:
        lines, fault = [], f" ({error})"
    if fault or len(lines) != count:
        raise ProblemError(
            f"{path}: expected the {count} outputs that the record counts, found {len(lines)}{fault}. Remove the folder and "
            "run the cell again."
        )
    return lines


def _keep(folder: Path, version: str) -> None:
    """Keep the old grades, if any, under a name that nothing has yet."""
    if not (folder / "grades.jsonl").exists():
        return
    name = f"grades.{version}"
    taken = [path.name for path in folder.glob(f"{name}*.jsonl")]
    number = next(n for n in range(len(taken) + 1) if f"{name}{f'-{n}' if n else ''}.jsonl" not in taken)
    kept = folder / f"{name}{f'-{number}' if number else ''}.jsonl"
    shutil.copyfile(folder / "grades.jsonl", kept)  # as it is: a torn one may be no text


def _write(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


if __name__ == "__main__":
    main()
