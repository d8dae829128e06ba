"""Runs one group of cells on one server: generate, grade, record; faults are kept, retried and reported.

outcomes = run_group(cells, GroupRunner(settings, display), Resolver())
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests

from evaluators import sandbox
from evaluators.grading import GRADER_VERSION, Answer, grade, is_code
from evaluators.problems import ProblemError
from evaluators.regrade import grades, regrade, versions
from runners.cell import SCHEMA, Cell
from runners.client import generate, sampling_params
from runners.display import Display
from runners.errors import ServerError, UserError
from runners.measure import measure, validity
from runners.provenance import describe_machine, describe_packages, provenance
from runners.resolve import Ready, Resolver, draft_is_shorter, effective_config
from runners.server import Server, ServerSpec
from runners.store import CellFolder

# Keys of a job's config that may differ from job to job: nodes of the cell, and what is resolved into them.
PER_CELL = ("method", "model", "benchmark", "engine", "seed", "trace", "kappa", "d", "limit", "per_cell", "data")
FAULTS = (ServerError, requests.RequestException)


@dataclass(frozen=True)
class Settings:
    """What a run needs beyond its cells."""

    results_dir: Path
    timeouts: Mapping[str, float]
    port: int | None
    attempts: int
    fail_fast: bool
    grading: Mapping[str, Any]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: with a record, or with the reason why it has none."""

    cell: Cell
    ready: Ready | None
    """None where weights or problems are out of reach."""
    record: Mapping[str, Any] | None
    failure: str | None = None


class GroupRunner:
    """Owns one server at a time."""

    def __init__(self, settings: Settings, display: Display) -> None:
        self.settings, self.display = settings, display
        self.server_starts = 0

    def run(self, readies: Sequence[Ready]) -> list[Outcome]:
        """Bring every cell to a record or a failure; a cell that is done already is only read."""
        outcomes: dict[str, Outcome | None] = {ready.id: self.finished(ready) for ready in readies}
        attempts = dict.fromkeys(outcomes, 0)
        while waiting := [ready for ready in readies if outcomes[ready.id] is None]:
            if self.settings.fail_fast and any(outcome and outcome.failure for outcome in outcomes.values()):
                break
            current = waiting[0]
            try:
                with self.start(waiting) as server:
                    for current in waiting:
                        outcomes[current.id] = self.display.finished(self.measure_cell(server, current))
            except UserError as error:  # the person's to mend: another try would end the same
                outcomes[current.id] = self.failed(current, str(error))
            except FAULTS as error:
                attempts[current.id] += 1
                self.keep_fault(current, error)
                if attempts[current.id] >= self.settings.attempts:
                    outcomes[current.id] = self.failed(current, f"{type(error).__name__}: {error}")
        return [outcome for outcome in outcomes.values() if outcome is not None]

    def folder(self, ready: Ready) -> CellFolder:
        """The cell's folder."""
        return CellFolder(self.settings.results_dir, ready.id)

    def finished(self, ready: Ready) -> Outcome | None:
        """Return the outcome of a cell that is done, or that must not be mixed with what lies there; None to run it."""
        folder = self.folder(ready)
        try:
            check_origin(folder)
            if record := folder.record():
                return self.display.finished(
                    Outcome(ready.cell, ready, self.graded_as_asked(ready, record)), cached=True
                )
            check_sandbox(ready, self.settings.grading)
        except UserError as error:
            return self.failed(ready, str(error))
        return None

    def graded_as_asked(self, ready: Ready, record: dict[str, Any]) -> dict[str, Any] | None:
        """Grade a finished cell's outputs again where the grader or `benchmark.grading`, no part of the id, is another than then."""
        benchmark, grading, folder = ready.cell.benchmark, self.settings.grading, self.folder(ready)
        same = record["provenance"]["config"]["benchmark"]["grading"] == benchmark["grading"]
        if same and versions(grades(folder.path)) == {GRADER_VERSION}:
            return record
        options = {"workers": grading["workers"], "allow_unconfined": grading["allow_unconfined"]}
        paths = {benchmark["name"]: benchmark["path"]}
        try:
            told = regrade(folder.path, paths, **options, settings=benchmark["grading"])
        except (ProblemError, sandbox.SandboxError) as error:
            raise UserError(f"cannot be graded again: {error}") from error
        self.display.note(f"  graded again, as the grader or benchmark.grading is another now: {told}")
        return folder.record()

    def failed(self, ready: Ready, reason: str) -> Outcome:
        """Say that a cell failed, and why."""
        return self.display.finished(Outcome(ready.cell, ready, None, reason))

    def start(self, waiting: Sequence[Ready]) -> Server:
        """Return the server for these cells, not started yet."""
        self.server_starts += 1
        spec = server_spec(waiting)
        log = self.settings.results_dir / "logs" / f"{waiting[0].id}.log"
        self.display.starting(spec.algorithm or "no speculation", len(waiting))
        return Server(spec, log, self.settings.timeouts, self.settings.port, self.display.server_line)

    def measure_cell(self, server: Server, ready: Ready) -> Outcome:
        """Generate what is missing, grade, and write the record last."""
        with self.folder(ready).claim() as folder:
            check_origin(folder)  # again: the claim may have been another machine's until now
            record = folder.record()
            if record is None:
                folder.write("origin.json", json.dumps(origin(), indent=1))
                folder.add_server_start(server.describe())
                warm_up(server, ready)
                generations = self.generate_missing(server, ready, folder)
                record = finish(ready, folder, generations, self.settings)
        return Outcome(ready.cell, ready, record)

    def generate_missing(self, server: Server, ready: Ready, folder: CellFolder) -> list[dict[str, Any]]:
        """Return all generations in the cell's order, making those that are not on disk yet."""
        done = {line["index"]: line for line in folder.generations()}
        for index, line in done.items():
            if line["prompt_sha256"] != ready.prompts[index].sha256:
                raise ServerError(
                    f"{folder.path} holds an output for another prompt at index {index}: remove the folder"
                )
        missing = [index for index in range(len(ready.prompts)) if index not in done]
        with self.display.cell(ready, len(done)) as advance:
            for line in stream(server, ready, missing):
                folder.append(line)
                done[line["index"]] = line
                advance(line)
        return [done[index] for index in sorted(done)]

    def keep_fault(self, ready: Ready, error: Exception) -> None:
        """Write the fault beside the cell's data before anything else happens."""
        with self.folder(ready).claim() as folder, contextlib.suppress(UserError):
            check_origin(folder)  # the claim may have been another machine's until now, whose faults are not ours
            at = datetime.now(UTC).isoformat(timespec="seconds")
            folder.add_fault({"at": at, "kind": type(error).__name__, "detail": str(error)})
        self.display.fault(ready, error)


def run_group(cells: Sequence[Cell], runner: GroupRunner, resolver: Resolver) -> list[Outcome]:
    """Run one group; a cell whose weights or problems are out of reach fails alone."""
    readies: list[Ready] = []
    failed: list[Outcome] = []
    for cell in cells:
        try:
            readies.append(resolver.resolve(cell))
        except UserError as error:
            failed.append(runner.display.finished(Outcome(cell, None, None, str(error))))
            if runner.settings.fail_fast:
                return failed
    return failed + runner.run(readies)


def stream(server: Server, ready: Ready, indices: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the generations of these prompts as they come, `engine.concurrency` at a time."""
    concurrency = ready.cell.engine["concurrency"]
    if concurrency == 1:
        yield from (generate(server, ready, index) for index in indices)
        return
    pool = ThreadPoolExecutor(concurrency)
    try:
        yield from (
            future.result()
            for future in as_completed([pool.submit(generate, server, ready, index) for index in indices])
        )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def warm_up(server: Server, ready: Ready) -> None:
    """Answer a few of the cell's own prompts and throw the answers away."""
    for index in range(ready.cell.engine["warmup"]):
        prompt = ready.prompts[index % len(ready.prompts)]
        parameters = {**sampling_params(ready), "max_new_tokens": min(16, ready.max_new_tokens)}
        server.post(
            "/generate", {"input_ids": list(prompt.ids), "sampling_params": parameters}, server.timeouts["request_s"]
        )
    if ready.cell.engine["radix_cache"]:
        server.flush_cache()  # else the prompts just answered, and those of the cell before, would be warm


def server_spec(readies: Sequence[Ready]) -> ServerSpec:
    """What the one server for these cells is started with."""
    first = readies[0]
    method, engine = first.cell.method, first.cell.engine
    shape = tuple(method["tree"]["shape"]) if method["algorithm"] == "EAGLE3" else None
    return ServerSpec(
        target=first.target.path,
        draft=first.draft.path if first.draft else None,
        algorithm=method["algorithm"],
        shape=shape,
        options={"tree": method["tree"], "accept": method["accept"]} if method["algorithm"] == "ADAPTIVESPEC" else None,
        engine=engine,
        seed=first.cell.seed,
        lift_draft_limit=draft_is_shorter(first),
    )


def origin() -> dict[str, Any]:
    """What must be equal for outputs to be put into one cell, beyond what the cell's id hashes."""
    machine, packages = describe_machine(), describe_packages()
    return {
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "gpu": machine["gpu"],
        "driver": machine["driver"],
        "torch": packages.get("torch"),
    }


def check_origin(folder: CellFolder) -> None:
    """Raise UserError where what lies in the folder is from another machine; what is from an unknown one passes."""
    path = folder.path / "origin.json"
    if not path.is_file():
        return
    theirs, ours = json.loads(path.read_text()), origin()
    other = [f"{key}: {theirs.get(key)} there, {ours[key]} here" for key in ours if theirs.get(key) != ours[key]]
    if other:
        raise UserError(
            f"{folder.path} was measured elsewhere ({'; '.join(other)}): neither reused nor mixed. Use another results_dir, "
            "or remove the folder"
        )


def check_sandbox(ready: Ready, grading: Mapping[str, Any]) -> None:
    """Raise UserError where the cell's outputs could not be graded: told now, not after the hours that they take."""
    name, problems = ready.cell.benchmark["name"], [prompt.problem for prompt in ready.prompts]
    if any(is_code(Answer(name, problem.id, problem.gold, "", None, problem.extra)) for problem in problems):
        try:
            sandbox.require(allow_unconfined=grading["allow_unconfined"])
        except sandbox.SandboxError as error:
            raise UserError(str(error)) from error


def finish(ready: Ready, folder: CellFolder, generations: list[dict[str, Any]], settings: Settings) -> dict[str, Any]:
    """Grade the outputs and write grades and record."""
    grades = grade_cell(ready, generations, settings.grading)
    folder.write("grades.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in grades))
    metrics = measure(generations, grades, len(ready.prompts), ready.cell.engine["concurrency"])
    record = {
        "schema": SCHEMA,
        "cell_id": ready.id,
        "cell": ready.described,
        "metrics": metrics,
        "validity": validity(metrics),
        "faults": folder.faults(),
        "provenance": {
            **provenance(),
            "created_at": generations[0]["started_at"],
            "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": config_of(ready.cell, settings),
            "models": {
                name: effective_config(checkpoint)
                for name, checkpoint in (("target", ready.target), ("draft", ready.draft))
                if checkpoint
            },
            "server_starts": folder.server_starts(),
        },
    }
    folder.write("record.json", json.dumps(record, indent=1, ensure_ascii=False))
    return record


def config_of(cell: Cell, settings: Settings) -> dict[str, Any]:
    """The resolved config that asked for this cell: what the run's jobs share, with the cell's own nodes for the rest."""
    own = {
        "method": cell.method,
        "model": cell.model,
        "benchmark": cell.benchmark,
        "engine": {**cell.engine, "port": settings.port, "timeouts": settings.timeouts},
        "seed": cell.seed,
        "trace": cell.trace,
    }
    return {key: value for key, value in settings.config.items() if key not in PER_CELL} | own


def grade_cell(
    ready: Ready, generations: Sequence[Mapping[str, Any]], grading: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Grade all outputs of a cell. Raises UserError where code cannot be run safely."""
    answers = [
        Answer(
            benchmark=ready.cell.benchmark["name"],
            id=line["item"],
            gold=ready.prompts[line["index"]].problem.gold,
            output=line["text"],
            finish_reason=line["finish_reason"],
            extra={**ready.prompts[line["index"]].problem.extra, "in_thought": line["in_thought"]},
        )
        for line in generations
    ]
    try:
        benchmark = ready.cell.benchmark
        options = {"workers": grading["workers"], "allow_unconfined": grading["allow_unconfined"]}
        return [
            asdict(result) for result in grade(answers, **options, limits={benchmark["name"]: benchmark["grading"]})
        ]
    except RuntimeError as error:
        raise UserError(str(error)) from error
