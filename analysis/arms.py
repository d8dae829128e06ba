"""Arms and their references: which records make one row, and which arm a ratio may be taken over.

    study = Study.load(Path("results/runs"))
    for arm in study.arms: study.speedup(arm), study.recovery(arm)

An arm is one cell with its repeats. A figure that cannot be had is a `Missing` with the reason, never a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import metrics, stats
from analysis.checked import Checked, check, compare_cells, refusal, same_task
from analysis.compare import differences, told_apart
from analysis.records import Problem, Record, canonical, load, regrade_command
from analysis.stats import Array, Estimate
from analysis.validity import Flag

PAPER_SHAPE = (3, 1, 4)


@dataclass(frozen=True)
class Missing:
    """Why there is no figure; `remedy` is a command that would add it."""

    reason: str
    remedy: str | None = None


Figure = Estimate | Missing
Models = frozenset[str] | None


def wanted(model: str, models: Models) -> bool:
    """Whether a table over `models` (None: all) has this one."""
    return models is None or model in models


@dataclass(frozen=True, eq=False)
class Arm:
    """One cell and its repeats, all valid, in order of repeat."""

    cells: tuple[Checked, ...]

    @property
    def record(self) -> Record:
        """The first repeat's record: what all repeats share."""
        return self.cells[0].record

    @property
    def n_items(self) -> int:
        """Items of one repeat, failed ones included."""
        return int(self.record.metrics["n_items"])

    @property
    def flags(self) -> list[Flag]:
        """Non-fatal flags of all repeats."""
        return [flag for cell in self.cells for flag in cell.flags]

    def by_repeat(self) -> dict[int, Checked]:
        """Repeats by their number."""
        return {cell.record.repeat: cell for cell in self.cells}

    @cached_property
    def throughput_tok_s(self) -> float:
        """Tokens per second over all repeats."""
        frame = pd.concat([cell.frame for cell in self.cells])
        return metrics.throughput_tok_s(frame, self.record.engine["concurrency"])

    def accuracy(self, grader: str = "correct") -> float | None:
        """Correct / all items, over all repeats; None where the benchmark has no such grader."""
        graded = [cell.frame[grader] for cell in self.cells]
        if all(column.isna().all() for column in graded):
            return None
        return float(sum(column.eq(True).sum() for column in graded) / (self.n_items * len(self.cells)))

    @cached_property
    def tau(self) -> Figure:
        """Accept length as the engine reports it, with its interval over items."""
        if self.record.algorithm is None:
            return Missing("vanilla has no verify steps")
        items = common_items([cell.frame for cell in self.cells])
        return stats.ratio(self.column("output_tokens", items), self.column("verify_steps", items))

    @cached_property
    def committed_per_step(self) -> float | None:
        """Exact tokens per verify step."""
        return (
            None
            if self.record.algorithm is None
            else metrics.committed_per_step(pd.concat([cell.frame for cell in self.cells]))
        )

    def column(self, name: str, items: pd.Index, repeats: Sequence[int] | None = None) -> Array:
        """(items, repeats) values of one column; items without an output count 0."""
        cells = [cell for cell in self.cells if repeats is None or cell.record.repeat in repeats]
        return np.column_stack([cell.frame[name].reindex(items).astype(float).fillna(0.0) for cell in cells])


@dataclass(frozen=True, eq=False)
class Study:
    """A results folder, checked and arranged."""

    results_dir: Path
    arms: tuple[Arm, ...]
    problems: tuple[Problem, ...]
    _cache: dict[tuple[int, str], Figure] = field(default_factory=dict)

    @classmethod
    def load(cls, results_dir: Path) -> Study:
        """Read, check and arrange all cells. Raises FileNotFoundError where there is no such folder."""
        loaded = load(results_dir)
        checked, problems = [], list(loaded.problems)
        for record in loaded.records:
            try:
                cell = check(record)
            except (ValueError, KeyError, TypeError) as error:
                problems.append(Problem(record.cell_id, f"its lines cannot be read: {error}"))
                continue
            if cell.fatal:
                problems.append(refusal(cell))
            else:
                checked.append(cell)
        checked = compare_cells(checked)
        for cell in (cell for cell in checked if cell.fatal):
            problems.append(refusal(cell))
        checked = [cell for cell in checked if not cell.fatal]
        return cls(results_dir, tuple(group_arms(checked)), tuple(problems))

    def label(self, arm: Arm) -> str:
        """The arm's label and, where another arm of the same model and benchmark has the same one, what tells them apart."""
        return self._labels[arm]

    @cached_property
    def _labels(self) -> dict[Arm, str]:
        return labels(self.arms)

    def select(self, cell_ids: Sequence[str] | None) -> list[Arm]:
        """Return the arms that hold any of these cells; all of them for None."""
        return [
            arm for arm in self.arms if cell_ids is None or any(cell.record.cell_id in cell_ids for cell in arm.cells)
        ]

    def reference(self, arm: Arm, name: str) -> Arm | Missing:
        """Find the arm's `vanilla` or `eagle3`: measured in the same way, on the same machine."""
        mine = arm.record
        alike = [other for other in self.arms if is_reference(other.record, name) and same_task(other.record, mine)]
        usable = [other for other in alike if not differences(mine, matching(other, mine.repeat))]
        if usable:
            return usable[0]
        if not alike:
            return Missing(f"no {name} of {mine.model} on {mine.benchmark}", remedy(mine, name, self.results_dir))
        closest = min((differences(mine, matching(other, mine.repeat)) for other in alike), key=len)
        return Missing(
            f"{name} of {mine.model} on {mine.benchmark} is not comparable ({'; '.join(closest)})",
            remedy(mine, name, self.results_dir),
        )

    def speedup(self, arm: Arm) -> Figure:
        """Throughput over vanilla's on the same items."""
        return self._once(arm, "speedup", lambda: self._speedup(arm))

    def recovery(self, arm: Arm, grader: str = "correct") -> Figure:
        """Accuracy in per cent of eagle3's (3,1,4) strict, same items; failed and ungradable ones stay in both denominators."""
        return self._once(arm, f"recovery {grader}", lambda: self._recovery(arm, grader))

    def _once(self, arm: Arm, name: str, make: Callable[[], Figure]) -> Figure:
        key = (id(arm), name)
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    def _speedup(self, arm: Arm) -> Figure:
        if arm.record.algorithm is None:
            return Missing("vanilla is the baseline")
        base = self.reference(arm, "vanilla")
        if isinstance(base, Missing):
            return base
        return throughput_ratio(arm, base)

    def step_cost(self, arm: Arm) -> float | None:
        """What the arm's verify step costs in units of vanilla's step; None where tau or speedup is missing."""
        tau, speedup = arm.tau, self.speedup(arm)
        if isinstance(tau, Missing) or isinstance(speedup, Missing):
            return None
        return metrics.step_cost(tau.value, speedup.value)

    def _recovery(self, arm: Arm, grader: str) -> Figure:
        base = self.reference(arm, "eagle3")
        if isinstance(base, Missing):
            return base
        versions = [set(cell.frame["grader_version"].dropna()) for cell in (*arm.cells, *base.cells)]
        if len(set().union(*versions)) > 1:
            return Missing(
                f"graded by different versions ({sorted(set().union(*versions))})", regrade_command(self.results_dir)
            )
        if problem := unpaired(arm, base):
            return Missing(problem)
        repeats, items = paired(arm, base, union=True)
        ours, theirs = (one.column(grader, items, repeats) for one in (arm, base))
        if not theirs.sum():
            return Missing("eagle3 (3,1,4) solved nothing, so there is nothing to recover")
        return stats.ratio(ours, theirs, scale=100.0)


def group_arms(cells: Sequence[Checked]) -> list[Arm]:
    """Put repeats of one cell on one machine together."""
    groups: dict[str, list[Checked]] = {}
    for cell in cells:
        record = cell.record
        key = canonical([{**record.cell, "repeat": None}, record.provenance["machine"].get("hostname_sha256")])
        groups.setdefault(key, []).append(cell)
    return [Arm(tuple(sorted(group, key=lambda cell: cell.record.repeat))) for group in groups.values()]


def labels(arms: Sequence[Arm]) -> dict[Arm, str]:
    """Each arm's label and, where another of these has the same model, benchmark and label, what tells them apart."""
    groups: dict[tuple[str, str, str], list[Arm]] = {}
    for arm in arms:
        groups.setdefault((arm.record.label, arm.record.model, arm.record.benchmark), []).append(arm)
    found = {}
    for (label, _, _), alike in groups.items():
        for arm, text in zip(alike, told_apart([arm.record for arm in alike]), strict=True):
            found[arm] = f"{label} [{text}]" if text else label
    return found


def is_reference(record: Record, name: str) -> bool:
    """Whether a record is a `vanilla` or an `eagle3` at the paper's shape."""
    if name == "vanilla":
        return record.algorithm is None
    return record.algorithm == "EAGLE3" and record.shape == PAPER_SHAPE and record.rule == "strict"


def matching(arm: Arm, repeat: int) -> Record:
    """The arm's record of one repeat, or its first where that one is missing."""
    cell = arm.by_repeat().get(repeat, arm.cells[0])
    return cell.record


def common_items(frames: Sequence[pd.DataFrame]) -> pd.Index:
    """Items that all frames have, in the first one's order."""
    common: pd.Index = frames[0].index
    for frame in frames[1:]:
        common = common[common.isin(frame.index)]
    return common


def paired(a: Arm, b: Arm, union: bool = False) -> tuple[list[int], pd.Index]:
    """Return the repeats that both arms have and the items: those both have, or all that any has."""
    repeats = sorted(set(a.by_repeat()) & set(b.by_repeat()))
    frames = [arm.by_repeat()[repeat].frame for repeat in repeats for arm in (a, b)]
    if not union:
        return repeats, common_items(frames)
    return repeats, pd.Index(dict.fromkeys(item for frame in frames for item in frame.index))


def throughput_ratio(arm: Arm, base: Arm) -> Figure:
    """Tokens per second of one arm over another's, with its paired interval at concurrency 1."""
    if arm.record.engine["concurrency"] > 1:
        return Estimate(arm.throughput_tok_s / base.throughput_tok_s)
    repeats, items = paired(arm, base)
    if problem := unpaired(arm, base):
        return Missing(problem)
    ours, theirs = (
        (one.column("output_tokens", items, repeats), one.column("latency_s", items, repeats)) for one in (arm, base)
    )
    return stats.ratio(*ours, over=theirs)


def unpaired(a: Arm, b: Arm) -> str | None:
    """Say why items of two arms do not belong together; None where they do (items that failed may be missing)."""
    ours, theirs = (arm.cells[0].frame["prompt_sha256"] for arm in (a, b))
    common = ours.index.intersection(theirs.index)
    lacking = max(len(ours), len(theirs)) - len(common)
    failed = sum(int(arm.record.metrics["n_failed"]) for arm in (a, b))
    if lacking > failed:
        return f"{lacking} items have no counterpart in {b.record.place}: the arms hold other items"
    others = int((ours.loc[common] != theirs.loc[common]).sum())
    return f"{others} items had another prompt in {b.record.place}" if others else None


def remedy(record: Record, name: str, results_dir: Path) -> str:
    """Return the command that adds a reference arm."""
    benchmark, engine = record.cell["benchmark"], record.engine
    parts = [
        f"python run.py method={name} model={record.model} benchmark={record.benchmark} engine.device={engine['device']}"
    ]
    parts += [f"benchmark.protocol={benchmark['protocol']}"] if benchmark["protocol"] != "default" else []
    parts += [f"limit={benchmark['limit']}"] if benchmark["limit"] is not None else []
    parts += [f"engine.dtype={engine['dtype']}"] if engine["dtype"] != "bfloat16" else []
    return " ".join([*parts, f"results_dir={results_dir}"])
