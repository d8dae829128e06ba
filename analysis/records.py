"""Reads what a run left on disk: cells with a record, and why other folders have none (docs/data.md).

loaded = load(Path("results/runs"))
loaded.records, loaded.problems
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

Node = Mapping[str, Any]
SCHEMA = 1
PARTS = ("cell_id", "cell", "metrics", "validity", "faults", "provenance")


@dataclass(frozen=True, eq=False)
class Record:
    """One complete cell."""

    folder: Path
    cell_id: str
    cell: Node
    metrics: Node
    validity: Node
    faults: tuple[Node, ...]
    provenance: Node

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.cell["method"]["name"])

    @property
    def algorithm(self) -> str | None:
        """`EAGLE3`, `ADAPTIVESPEC`, or None for vanilla."""
        algorithm: str | None = self.cell["method"]["algorithm"]
        return algorithm

    @property
    def tree(self) -> Node:
        """Options of the tree policy; empty for vanilla."""
        return self.cell["method"]["tree"] or {}

    @property
    def accept(self) -> Node:
        """Options of the accept rule; empty for vanilla."""
        return self.cell["method"]["accept"] or {}

    @property
    def rule(self) -> str | None:
        """`strict`, `margin`, `window`, or None for vanilla."""
        return self.accept.get("rule")

    @property
    def kappa(self) -> float | None:
        """Margin threshold, where the rule has one."""
        return self.accept.get("kappa") if self.rule == "margin" else None

    @property
    def d(self) -> float | None:
        """Divisor of the draft confidence score, where the policy has one."""
        return self.tree.get("d") if self.tree.get("policy") == "dcs" else None

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(num_steps, topk, num_draft_tokens) of a static tree."""
        shape = self.tree.get("shape") if self.tree.get("policy") == "static" else None
        return (shape[0], shape[1], shape[2]) if shape else None

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.cell["model"]["name"])

    @property
    def benchmark(self) -> str:
        """Name of the benchmark."""
        return str(self.cell["benchmark"]["name"])

    @property
    def engine(self) -> Node:
        """Engine settings."""
        engine: Node = self.cell["engine"]
        return engine

    @property
    def repeat(self) -> int:
        """Which of several equal measurements this is."""
        return int(self.cell["repeat"])

    @property
    def label(self) -> str:
        """The method with the options that are swept: `combined kappa=0.2 d=0.5`."""
        parts = [self.method]
        parts += [f"kappa={self.kappa:g}"] if self.kappa is not None else []
        parts += [f"d={self.d:g}"] if self.d is not None else []
        if self.shape and self.method not in ("eagle3", "fly", "lossy"):
            parts.append("({},{},{})".format(*self.shape))
        return " ".join(parts)

    @property
    def place(self) -> str:
        """Method, model and benchmark, for messages."""
        return f"{self.label}, {self.model}, {self.benchmark}" + (f", repeat {self.repeat}" if self.repeat else "")

    def generations(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of generations.jsonl, one at a time: a cell may hold more than memory likes."""
        yield from read_lines(self.folder / "generations.jsonl")

    def counted(self) -> Iterator[dict[str, Any]]:
        """The same with `trace_steps` for `trace`, which is most of a file's bytes and which tables do not need."""
        yield from read_lines(self.folder / "generations.jsonl", cut_trace)

    def grades(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of grades.jsonl."""
        yield from read_lines(self.folder / "grades.jsonl")


@dataclass(frozen=True)
class Problem:
    """Something that has no row, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Loaded:
    """All that a results folder holds, in order of name."""

    records: tuple[Record, ...]
    problems: tuple[Problem, ...]


def load(results_dir: Path) -> Loaded:
    """Load every cell of a folder. Raises FileNotFoundError where there is no such folder."""
    if not results_dir.is_dir():
        raise FileNotFoundError(
            f"--results {results_dir}: no such folder; expected the results_dir of a run (results/runs by default)"
        )
    records: list[Record] = []
    problems: list[Problem] = []
    for folder in sorted(path for path in results_dir.iterdir() if path.is_dir() and not path.name.startswith(".")):
        found = read_cell(folder)
        if isinstance(found, Record):
            records.append(found)
        elif found:
            problems.append(found)
    return Loaded(tuple(records), tuple(problems))


def read_cell(folder: Path) -> Record | Problem | None:
    """Return the folder's record, why it has none, or None where the folder is no cell at all."""
    path = folder / "record.json"
    if not path.is_file():
        if not any((folder / name).exists() for name in ("generations.jsonl", "faults.json", "origin.json")):
            return None
        return Problem(
            folder.name, f"unfinished: no record.json{last_fault(folder)}; run the same command again to complete it"
        )
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            return Problem(
                folder.name,
                f"schema={document['schema']}: expected {SCHEMA}; measure again or use the version that wrote it",
            )
        parts = {name: document[name] for name in PARTS}
    except (ValueError, KeyError, TypeError) as error:
        return Problem(
            folder.name,
            f"record.json cannot be read ({type(error).__name__}: {error}); remove the folder and run again",
        )
    return Record(folder, **{**parts, "faults": tuple(parts["faults"])})


def last_fault(folder: Path) -> str:
    """Name the last fault of an unfinished cell."""
    path = folder / "faults.json"
    try:
        faults = json.loads(path.read_bytes()) if path.is_file() else []
    except ValueError:
        return " (faults.json cannot be read)"
    if not faults:
        return ""
    said = ": ".join(text for text in (faults[-1]["kind"], str(faults[-1]["detail"]).partition("\n")[0]) if text)
    return f" (last fault: {said})"


def parse_line(line: bytes) -> dict[str, Any]:
    """Read one JSON object."""
    value: dict[str, Any] = orjson.loads(line)
    return value


def cut_trace(line: bytes) -> dict[str, Any]:
    """Read a generation without building its trace, whose place is taken by `trace_steps`.

    A quote inside a JSON string is escaped, so these bytes can only be keys. Where they are not found the line is read as it is.
    """
    begin = line.find(b'"trace": [')
    end = line.find(b'], "server": "', begin)
    if begin < 0 or end < 0:
        return parse_line(line)
    n_steps = line.count(b'"committed":', begin, end)
    return parse_line(line[:begin] + b'"trace": null, "trace_steps": %d' % n_steps + line[end + 1 :])


def read_lines(path: Path, parse: Callable[[bytes], dict[str, Any]] = parse_line) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, one a line; nothing where it is missing. Raises ValueError naming the bad line."""
    if not path.is_file():
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield parse(line)
            except orjson.JSONDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}: {error}; grade again or remove the cell's folder and run again"
                ) from None


def regrade_command(results_dir: Path) -> str:
    """The command that has every output of a folder graded by one version."""
    return f"python -m evaluators.regrade {results_dir}"


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: what a cell's id hashes, so that the order of keys cannot matter."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def id_digits(cell: Node) -> str:
    """The 12 hex digits that end a cell's id."""
    return hashlib.sha256(canonical(cell).encode()).hexdigest()[:12]
