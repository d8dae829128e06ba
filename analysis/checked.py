"""Cells with their flags: what a record's own lines say, and what only shows beside other cells.

checked = compare_cells([check(record) for record in records])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import metrics
from analysis.compare import differences
from analysis.lossless import judge
from analysis.records import Problem, Record, canonical
from analysis.validity import Flag, frame_flags

CLOCKS_APART = 0.03


@dataclass(frozen=True, eq=False)
class Checked:
    """A record with its items and what the detectors say."""

    record: Record
    frame: pd.DataFrame
    flags: tuple[Flag, ...]

    @property
    def fatal(self) -> tuple[Flag, ...]:
        """Flags that take the row away."""
        return tuple(flag for flag in self.flags if flag.fatal)

    def with_flag(self, flag: Flag) -> Checked:
        """The same with one more flag."""
        return Checked(self.record, self.frame, (*self.flags, flag))


def check(record: Record) -> Checked:
    """Read a record's lines and run all detectors."""
    frame = metrics.items(record.counted(), record.grades())
    return Checked(record, frame, tuple(frame_flags(record, frame)))


def refusal(cell: Checked) -> Problem:
    """Why a cell has no row."""
    return Problem(cell.record.cell_id, "invalid: " + "; ".join(f"{flag.code} {flag.detail}" for flag in cell.fatal))


def compare_cells(cells: Sequence[Checked]) -> list[Checked]:
    """Add the flags that compare a cell with others: outputs, seeds, clocks."""
    return [with_clocks(with_gate(cell, cells), cells) for cell in flag_inactive_sampling(cells)]


def vanilla_of(cell: Checked, cells: Sequence[Checked]) -> Checked | None:
    """The vanilla cell that a cell may be compared with."""
    alike = [other for other in cells if other.record.algorithm is None and same_task(other.record, cell.record)]
    return next((other for other in alike if not differences(cell.record, other.record)), None)


def same_task(a: Record, b: Record) -> bool:
    """Same model and benchmark by name; `differences` says the rest."""
    return a.model == b.model and a.benchmark == b.benchmark


def with_gate(cell: Checked, cells: Sequence[Checked]) -> Checked:
    """Flag a strict arm whose outputs are not vanilla's; fatal where a measured top-2 gap calls it a violation."""
    record = cell.record
    if record.algorithm is None or record.rule != "strict" or record.engine["temperature"] > 0:
        return cell
    base = vanilla_of(cell, cells)
    if base is None:
        return cell
    common = cell.frame.index.intersection(base.frame.index)
    if (cell.frame["ids_sha256"].loc[common] == base.frame["ids_sha256"].loc[common]).all():
        return cell
    verdict = judge(record, base.record)
    detail = f"{len(verdict.differing)}/{verdict.n_items} outputs differ from vanilla's ({verdict.word})"
    flag = Flag("NOT_LOSSLESS" if verdict.word == "violation" else "DIVERGED", detail, verdict.word == "violation")
    return cell.with_flag(flag)


def flag_inactive_sampling(cells: Sequence[Checked]) -> list[Checked]:
    """Flag cells at a temperature above 0 whose outputs are the same under every seed: sampling had no effect."""
    outputs: dict[str, list[tuple[str, ...]]] = {}
    for cell in cells:
        outputs.setdefault(seedless(cell), []).append(tuple(cell.frame["ids_sha256"]))
    result = []
    for cell in cells:
        texts = outputs[seedless(cell)]
        if cell.record.engine["temperature"] > 0 and len(texts) > 1 and len(set(texts)) == 1:
            detail = f"{len(texts)} seeds gave identical outputs at temperature {cell.record.engine['temperature']}"
            cell = cell.with_flag(Flag("SAMPLING_INACTIVE", detail, False))
        result.append(cell)
    return result


def seedless(cell: Checked) -> str:
    """Equal for cells that differ in their seed only."""
    return canonical({**cell.record.cell, "seed": None})


def with_clocks(cell: Checked, cells: Sequence[Checked]) -> Checked:
    """Flag an arm whose GPU ran at another clock than its baseline's: the ratio is then partly the clock's."""
    base = vanilla_of(cell, cells) if cell.record.algorithm else None
    if base is None:
        return cell
    ours, theirs = (float(one.frame["gpu_clock_mhz"].astype(float).median()) for one in (cell, base))
    if not theirs > 0 or not abs(ours / theirs - 1) > CLOCKS_APART:  # NaN where a clock is not known
        return cell
    detail = (
        f"GPU at {ours:.0f} MHz (median), vanilla's at {theirs:.0f}: measure again, or fix the clock (nvidia-smi -lgc)"
    )
    return cell.with_flag(Flag("CLOCKS_DIFFER", detail, False))
