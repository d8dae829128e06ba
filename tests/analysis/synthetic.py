"""Writes cells as docs/data.md describes them, from chosen numbers, so that every table's right answer is known."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from analysis.records import id_digits

END = 2
STRICT = {"rule": "strict"}
DCS = {
    "policy": "dcs", "d": 0.5, "alpha": 0.3, "rar_init": 0.5, "breaker": 5, "rar_counts_promoted": True, "rounding": "half_up",
}  # fmt: skip
CHAIN = {"policy": "static", "shape": [7, 1, 8]}
TALON = {"policy": "talon", "mu": 0.03, "table": [[7, 1, 8], [6, 2, 8], [4, 3, 8], [3, 4, 8]]}
EAGLE = {"policy": "static", "shape": [3, 1, 4]}
METHODS: dict[str, tuple[str | None, dict[str, Any] | None, dict[str, Any] | None]] = {
    "vanilla": (None, None, None),
    "eagle3": ("EAGLE3", EAGLE, STRICT),
    "static": ("ADAPTIVESPEC", EAGLE, STRICT),
    "talon": ("ADAPTIVESPEC", TALON, STRICT),
    "dynamic": ("ADAPTIVESPEC", DCS, STRICT),
    "fly": ("ADAPTIVESPEC", CHAIN, {"rule": "window", "w": 3, "theta": 0.3, "entropy": "top3"}),
    "lossy": ("ADAPTIVESPEC", CHAIN, {"rule": "margin", "kappa": 0.2, "max_promotions": 1}),
    "combined": ("ADAPTIVESPEC", DCS, {"rule": "margin", "kappa": 0.2, "max_promotions": 1}),
}
MACHINE = {"cpu": "Test CPU", "cores": 8, "memory_gib": 32.0, "gpu": [], "driver": None, "hostname_sha256": "aa" * 8}
A100 = {**MACHINE, "gpu": ["NVIDIA A100-SXM4-80GB"], "driver": "570.1"}


@dataclass(frozen=True)
class Item:
    """One output: `steps` verify steps made all tokens but the first and one for each retraction."""

    tokens: int = 41
    latency_s: float = 1.0
    steps: int = 20
    correct: bool = True
    finish: str = "stop"
    ids: tuple[int, ...] | None = None
    text: str = "an answer"
    promotions: int = 1
    retractions: int = 0
    machine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """One cell to write."""

    method: str = "vanilla"
    items: Sequence[Item] = field(default_factory=lambda: [Item()] * 10)
    model: str = "smollm2_135m"
    benchmark: str = "demo"
    kappa: float | None = None
    d: float | None = None
    shape: tuple[int, int, int] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Other options of the method: another reading of it."""
    draft_sha256: str | None = None
    device: str = "cpu"
    protocol: str = "default"
    limit: int | None = None
    repeat: int = 0
    seed: int = 0
    machine: dict[str, Any] = field(default_factory=lambda: MACHINE)
    begin: datetime = datetime(2026, 11, 30, tzinfo=UTC)
    trace: bool = False
    engine: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def with_(self, **changes: Any) -> Spec:
        return replace(self, **changes)


def cell_of(spec: Spec) -> dict[str, Any]:
    """The `cell` part of a record."""
    algorithm, tree, accept = copy.deepcopy(METHODS[spec.method])
    if spec.kappa is not None and accept:
        accept["kappa"] = spec.kappa
    if spec.d is not None and tree:
        tree["d"] = spec.d
    if spec.shape is not None and tree:
        tree["shape"] = list(spec.shape)
    for name, value in spec.options.items():
        (tree if tree and name in tree else accept)[name] = value
    engine = {
        "device": spec.device, "dtype": "bfloat16", "sglang": "0.5.23", "attention_backend": "triton", "cuda_graph": False,
        "overlap_schedule": False, "radix_cache": False, "tp_size": 1, "dp_size": 1, "concurrency": 1, "warmup": 2, "temperature": 0.0,
        **spec.engine,
    }  # fmt: skip
    return {
        "method": {"name": spec.method, "algorithm": algorithm, "tree": tree, "accept": accept},
        "model": {
            "name": spec.model,
            "target": {"id": f"org/{spec.model}", "revision": "r1", "sha256": None},
            "draft": {"id": f"org/{spec.model}-eagle3", "revision": "r1", "sha256": spec.draft_sha256} if algorithm else None,
            "chat_template_sha256": "cc",
            "enable_thinking": None,
        },
        "benchmark": {
            "name": spec.benchmark, "protocol": spec.protocol, "limit": spec.limit, "sample": "first", "n_items": len(spec.items),
            "max_new_tokens": 160, "stop": [], "data_sha256": "dd", "prompts_sha256": "pp",
        },
        "engine": engine,
        "trace": spec.trace,
        "seed": spec.seed,
        "repeat": spec.repeat,
    }  # fmt: skip


def shapes_of(cell: dict[str, Any], steps: int) -> dict[str, int]:
    """Where the steps went: two shapes under a dynamic policy."""
    tree = cell["method"]["tree"]
    if tree["policy"] == "static":
        return {",".join(map(str, tree["shape"])): steps}
    wide = steps // 3
    return {key: count for key, count in (("3,4,4", wide), ("7,1,8", steps - wide)) if count}


def spread(total: int, steps: int) -> list[int]:
    """Accepted drafts of each step, as even as can be."""
    return [total // steps + (step < total % steps) for step in range(steps)] if steps else []


def generation(cell: dict[str, Any], item: Item, index: int, started_at: datetime, server: str) -> dict[str, Any]:
    """One line of generations.jsonl."""
    method, ids = (
        cell["method"],
        list(item.ids or [10 + place % 50 for place in range(item.tokens - 1)] + [END if item.finish == "stop" else 9]),
    )
    accepted = spread(len(ids) - 1 - item.retractions - item.steps, item.steps) if method["algorithm"] else []
    line: dict[str, Any] = {
        "item": f"{cell['benchmark']['name']}/{index}",
        "index": index,
        "prompt_sha256": hashlib.sha256(f"{cell['benchmark']['name']}/{index}".encode()).hexdigest(),
        "prompt_tokens": 20,
        "output_ids": ids,
        "text": item.text,
        "output_tokens": len(ids),
        "finish_reason": item.finish,
        "latency_s": item.latency_s,
        "num_retractions": item.retractions,
        "verify_steps": item.steps if method["algorithm"] else None,
        "accept_histogram": [accepted.count(depth) for depth in range(max(accepted, default=0) + 1)]
        if method["algorithm"]
        else None,
        "adaptivespec": None,
        "trace": None,
        "server": server,
        "started_at": started_at.isoformat(timespec="milliseconds"),
        "machine": {
            "load1": 0.1,
            "others_cores": 0.0,
            "cpu_mhz": None,
            "cpu_temperature_c": None,
            "gpu_clock_mhz": None,
            "gpu_temperature_c": None,
            "gpu_throttled": None,
            **item.machine,
        },
    }
    if method["algorithm"] == "ADAPTIVESPEC":
        line["adaptivespec"] = totals(cell, item, len(ids) - 1 - item.retractions)
        line["trace"] = trace(cell, item, accepted, ids) if cell["trace"] else None
    return line


def totals(cell: dict[str, Any], item: Item, committed: int) -> dict[str, Any]:
    """The plugin's totals of one request."""
    accept = cell["method"]["accept"]
    return {
        "steps_per_shape": shapes_of(cell, item.steps),
        "steps": item.steps,
        "committed": committed,
        "accepted": committed - item.steps,
        "promotions": 0 if accept["rule"] == "strict" else item.promotions,
        "breaker_trips": 0,
        "rule": accept["rule"],
        "kappa": accept.get("kappa"),
        "d": cell["method"]["tree"].get("d"),
        "note": None,
        "traced": cell["trace"],
    }


def trace(cell: dict[str, Any], item: Item, accepted: Sequence[int], ids: Sequence[int]) -> list[dict[str, Any]]:
    """Steps with the promotions at the start of the first ones."""
    shapes = [json.loads(f"[{key}]") for key, count in shapes_of(cell, item.steps).items() for _ in range(count)]
    lossy, position, steps = cell["method"]["accept"]["rule"] != "strict", 1, []
    for number, (shape, count) in enumerate(zip(shapes, accepted, strict=True)):
        promoted = []
        if lossy and number < item.promotions and count:
            promoted = [{"position": position, "token": ids[position], "target_token": 7, "margin": 0.4}]
        dcs = round((shape[0] - 3) / 4, 2) if cell["method"]["tree"]["policy"] == "dcs" else None
        steps.append({"shape": shape, "dcs": dcs, "accepted": count, "committed": count + 1, "promoted": promoted})
        position += count + 1
    return steps


def metrics_of(
    cell: dict[str, Any], lines: Sequence[dict[str, Any]], grades: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The metrics that a runner writes, computed here on their own."""
    tokens, seconds = sum(line["output_tokens"] for line in lines), sum(line["latency_s"] for line in lines)
    steps = sum(line["verify_steps"] for line in lines) if cell["method"]["algorithm"] else None
    n_items = cell["benchmark"]["n_items"]
    plugin = [line["adaptivespec"] for line in lines if line["adaptivespec"]]
    return {
        "n_items": n_items,
        "n_failed": n_items - len(lines),
        "n_ungradable": sum(grade["ungradable"] for grade in grades),
        "n_truncated": sum(line["finish_reason"] == "length" for line in lines),
        "output_tokens": tokens,
        "prompt_tokens": sum(line["prompt_tokens"] for line in lines),
        "request_s": seconds,
        "throughput_tok_s": tokens / seconds,
        "verify_steps": steps,
        "tau": tokens / steps if steps else None,
        "committed_per_step": (tokens - sum(1 + line["num_retractions"] for line in lines)) / steps if steps else None,
        "accuracy": sum(grade["correct"] for grade in grades) / n_items,
        "accuracy_paper": sum(bool(grade["paper_correct"]) for grade in grades) / n_items,
        "promotions": sum(total["promotions"] for total in plugin) if plugin else None,
        "steps_per_shape": None,
    }


def write_cell(results_dir: Path, spec: Spec, mutate: Callable[[Cell], None] | None = None) -> str:
    """Write a complete cell and return its id; `mutate` may spoil its parts first."""
    cell = cell_of(spec)
    lines, now = [], spec.begin
    for index, item in enumerate(spec.items):
        lines.append(generation(cell, item, index, now, f"server-{spec.repeat}"))
        now += timedelta(seconds=item.latency_s)
    grades = [
        {"item": line["item"], "correct": item.correct, "ungradable": False, "extracted": "4", "reason": "equal",
         "paper_correct": item.correct, "paper_extracted": "4", "grader_version": "1"}
        for line, item in zip(lines, spec.items, strict=True)
    ]  # fmt: skip
    provenance = {
        "created_at": spec.begin.isoformat(), "finished_at": now.isoformat(), "git_sha": "0" * 40, "git_dirty": False, "argv": ["run.py"],
        "config": {}, "packages": {"sglang": "0.5.23", "torch": "2.13.0+cpu"}, "torch_build": "cpu", "python": "3.11.9",
        "machine": dict(spec.machine), "environment": {}, "server_starts": [], **spec.provenance,
    }  # fmt: skip
    record = {
        "schema": 1,
        "cell_id": f"{spec.method}-{spec.model}-{spec.benchmark}-{id_digits(cell)}",
        "cell": cell,
        "metrics": metrics_of(cell, lines, grades),
        "validity": {"valid": True, "flags": []},
        "faults": [],
        "provenance": provenance,
    }
    parts = Cell(record, lines, grades)
    if mutate:
        mutate(parts)
    parts.write(results_dir)
    return str(record["cell_id"])


@dataclass
class Cell:
    """A cell's three files before they are written."""

    record: dict[str, Any]
    lines: list[dict[str, Any]]
    grades: list[dict[str, Any]]
    folder: str | None = None

    def write(self, results_dir: Path) -> None:
        folder = results_dir / (self.folder or self.record["cell_id"])
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("generations.jsonl", self.lines), ("grades.jsonl", self.grades)):
            (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "record.json").write_text(json.dumps(self.record, indent=1))
