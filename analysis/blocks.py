"""Rows that belong together in a table: one model and drafter, measured in one way on one machine. Never mixes two ways in one row.

for block in blocks(study, None): block.find("combined", "gsm8k", kappa=0.2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis import configured, published
from analysis.arms import Arm, Models, Study, wanted
from analysis.compare import apart, flatten
from analysis.records import Node, Record, canonical

SETTING_FIELDS = ("protocol", "limit", "sample")
TASK_FIELDS = ("max_new_tokens", "stop", "data_sha256", "prompts_sha256")


@dataclass(frozen=True, eq=False)
class Block:
    """One model's arms under one setting; `setting` is None where nothing was measured."""

    model: str
    arms: tuple[Arm, ...]
    setting: str | None
    ambiguous: bool = False

    @property
    def record(self) -> Record | None:
        """Any record: they share the setting."""
        return self.arms[0].record if self.arms else None

    @property
    def on_cpu(self) -> bool:
        """Whether this is no place for the paper's figures."""
        return self.record is not None and self.record.engine["device"] == "cpu"

    @property
    def in_paper(self) -> bool:
        """Whether the paper's figures may stand beside these."""
        return self.model in published.MODELS and not self.on_cpu

    @property
    def label(self) -> str:
        """The model's name, with the setting where it matters."""
        name = published.MODELS.get(self.model, self.model)
        extra = self.setting if self.ambiguous or self.on_cpu else None
        return f"{name} ({extra})" if extra else name

    @property
    def benchmarks(self) -> list[str]:
        """Benchmarks measured here, the paper's first."""
        measured = {arm.record.benchmark for arm in self.arms}
        return [name for name in published.BENCHMARKS if name in measured] + sorted(
            measured - set(published.BENCHMARKS)
        )

    def cell(self, method: str, benchmark: str) -> Arm | None:
        """Return the arm of Table 1's cell: at the paper's kappa and d, outside the paper at conf's."""
        kappa, d = (given(method, self.model, benchmark) for given in (published.kappa, published.d))
        return self.find(method, benchmark, kappa, d)

    def find(self, method: str, benchmark: str, kappa: float | None = None, d: float | None = None) -> Arm | None:
        """Return the arm of one cell of a table; None where it was not measured."""
        return find(self.arms, method, benchmark, kappa, d)

    def best_static(self, study: Study) -> tuple[int, int, int] | None:
        """The static strict shape with the highest mean speedup, of those measured on every benchmark here (eagle3 among them)."""
        means: dict[tuple[int, int, int], list[float]] = {}
        for benchmark in self.benchmarks:
            for shape in self.static_shapes():
                arm = self.static(benchmark, shape)
                figure = study.speedup(arm) if arm else None
                means.setdefault(shape, []).append(getattr(figure, "value", float("nan")))
        usable = {
            shape: sum(values) / len(values)
            for shape, values in means.items()
            if all(value == value for value in values)
        }
        return max(usable, key=lambda shape: usable[shape], default=None)

    def static_shapes(self) -> list[tuple[int, int, int]]:
        """Shapes measured as static strict trees."""
        return sorted({arm.record.shape for arm in self.arms if arm.record.rule == "strict" and arm.record.shape})

    def static(self, benchmark: str, shape: tuple[int, int, int]) -> Arm | None:
        """The arm of a static strict shape; SGLang's own worker first."""
        fits = [
            arm
            for arm in self.arms
            if (arm.record.rule, arm.record.shape, arm.record.benchmark) == ("strict", shape, benchmark)
        ]
        return min(fits, key=lambda arm: arm.record.algorithm != "EAGLE3", default=None)


def find(
    arms: Sequence[Arm], method: str, benchmark: str, kappa: float | None = None, d: float | None = None
) -> Arm | None:
    """Return the arm of one cell of the paper's tables, with the method's options as conf has them."""
    fits = [arm for arm in arms if is_cell(arm.record, method, benchmark, kappa, d)]
    # The longest measurement first; of equals the untraced one.
    return min(fits, key=lambda arm: (-len(arm.cells), bool(arm.record.cell["trace"])), default=None)


def is_cell(record: Record, method: str, benchmark: str, kappa: float | None = None, d: float | None = None) -> bool:
    """Whether a record is a cell of the paper's tables: another reading of a method (conf/extra) is not, though it has its name."""
    return (
        (record.method, record.benchmark) == (method, benchmark)
        and (kappa is None or record.kappa == kappa)
        and (d is None or record.d == d)
        and configured.options(record.cell["method"]) == configured.method(method)
    )


def blocks(study: Study, models: Models) -> list[Block]:
    """Return the blocks of a table: the paper's models (also where nothing was measured), then others; of these, `models`."""
    found: dict[str, dict[str, list[Arm]]] = {name: {} for name in published.MODELS if wanted(name, models)}
    for arm in study.arms:
        if wanted(arm.record.model, models):
            key = canonical(signature(arm.record))
            found.setdefault(arm.record.model, {}).setdefault(key, []).append(arm)
    result = []
    for name, settings in found.items():
        parts = [
            (arms, {"asked": asked, "drafter": {"draft": draft}})
            for group in settings.values()
            for alike, asked in by_task(group)
            for arms, draft in by_draft(alike)
        ]
        labelled = zip(parts, setting_labels(parts), strict=True)
        made = [Block(name, tuple(arms), setting, len(parts) > 1) for (arms, _), setting in labelled]
        if name in published.MODELS and not any(block.in_paper for block in made):
            made.insert(0, Block(name, (), None))
        result += sorted(made, key=lambda block: (block.on_cpu, -len(block.arms)))
    return result


def by_task(arms: Sequence[Arm]) -> list[tuple[Sequence[Arm], Node]]:
    """The arms of each way in which a benchmark was asked, with the benchmarks that were asked in one; the ways, by benchmark.

    No part of `signature`: a block spans benchmarks, and each has its own.
    """
    ways: dict[str, dict[str, Node]] = {}
    for arm in arms:
        ways.setdefault(arm.record.benchmark, {})[canonical(task(arm.record))] = task(arm.record)
    several = {
        name: sorted(found.values(), key=lambda way: (way["max_new_tokens"], canonical(way)))
        for name, found in ways.items()
        if len(found) > 1
    }
    if not several:
        return [(arms, {})]
    parts: list[tuple[Sequence[Arm], Node]] = []
    for place in range(max(map(len, several.values()))):
        asked = {name: found[min(place, len(found) - 1)] for name, found in several.items()}
        parts.append(([arm for arm in arms if asked.get(arm.record.benchmark) in (None, task(arm.record))], asked))
    return parts


def task(record: Record) -> Node:
    """What was asked, and where outputs end."""
    return {name: record.cell["benchmark"][name] for name in TASK_FIELDS}


def by_draft(arms: Sequence[Arm]) -> list[tuple[Sequence[Arm], Node | None]]:
    """The arms of each drafter, with those that have none; the drafter, where there are several."""
    drafts = {canonical(draft): draft for arm in arms if (draft := arm.record.cell["model"]["draft"])}
    if len(drafts) < 2:
        return [(arms, None)]
    return [
        ([arm for arm in arms if arm.record.cell["model"]["draft"] in (None, draft)], draft)
        for draft in drafts.values()
    ]


def setting_labels(parts: Sequence[tuple[Sequence[Arm], Node]]) -> list[str]:
    """Each part's setting in words, no two alike: where one's words are another's too, with the fields in which they differ."""
    found = [describe(arms[0].record) for arms, _ in parts]
    for text in set(found):
        places = [place for place, other in enumerate(found) if other == text]
        fields = [flatten({**signature(parts[place][0][0].record), **parts[place][1]}) for place in places]
        for place, more in zip(places, apart(fields), strict=True):
            found[place] = f"{text}, {more}" if more else text
    return found


def signature(record: Record) -> Node:
    """Equal for records that a table may show in one row: engine, protocol, seed, target, machine."""
    model, packages = record.cell["model"], record.provenance["packages"]
    return {
        "engine": record.engine,
        "benchmark": {name: record.cell["benchmark"].get(name) for name in SETTING_FIELDS},
        "seed": record.cell["seed"],
        "model": {name: model[name] for name in ("target", "chat_template_sha256", "enable_thinking")},
        "machine": {**record.provenance["machine"], "memory_gib": None},
        "packages": {name: packages.get(name) for name in ("torch", "sglang")},
    }


def describe(record: Record) -> str:
    """`cpu, protocol default, first 8 items`: what tells one setting from another."""
    benchmark, engine, machine = record.cell["benchmark"], record.engine, record.provenance["machine"]
    where = ", ".join(sorted(set(machine["gpu"]))) if engine["device"] == "cuda" else "CPU"
    parts = [where, f"protocol {benchmark['protocol']}", engine["dtype"]]
    parts += [f"{benchmark['sample']} {benchmark['limit']} items"] if benchmark["limit"] else []
    parts += [f"concurrency {engine['concurrency']}"] if engine["concurrency"] != 1 else []
    parts += [f"seed {record.cell['seed']}"] if record.cell["seed"] else []
    return ", ".join(parts)


def columns(chosen: Sequence[Block]) -> list[str]:
    """Benchmarks of a table: the paper's three, and others that were measured."""
    others = {name for block in chosen for name in block.benchmarks} - set(published.BENCHMARKS)
    return [*published.BENCHMARKS, *sorted(others)]
