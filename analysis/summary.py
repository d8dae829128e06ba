"""The table at the end of a run: one row per arm, with intervals, and below it what has no row and why.

python -m analysis.tables summary --results results/runs
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.arms import Arm, Figure, Missing, Models, Study, wanted
from analysis.render import Grid
from analysis.stats import restart_deviation

HEADER = ("method", "model", "benchmark", "items", "tok/s", "speedup", "tau", "accuracy", "recovery")
ORDER = ("vanilla", "eagle3", "static", "talon", "dynamic", "fly", "lossy", "combined")


def summary(study: Study, cell_ids: Sequence[str] | None = None, models: Models = None) -> Grid:
    """Build the table of all arms, or of those that hold one of these cells, or of these models."""
    arms = sorted((arm for arm in study.select(cell_ids) if wanted(arm.record.model, models)), key=order)
    notes = [*reference_notes(study, arms), *flag_notes(arms), *repeat_notes(study, arms), *no_rows(study, cell_ids)]
    return Grid("", HEADER, tuple(row(study, arm) for arm in arms), tuple(notes))


def order(arm: Arm) -> tuple[object, ...]:
    """By model and benchmark, then as the paper lists the methods."""
    record = arm.record
    place = ORDER.index(record.method) if record.method in ORDER else len(ORDER)
    return record.model, record.benchmark, place, record.method, record.label


def row(study: Study, arm: Arm) -> tuple[str, ...]:
    """One arm's texts."""
    record = arm.record
    repeats = f" x {len(arm.cells)}" if len(arm.cells) > 1 else ""
    accuracy = arm.accuracy()
    return (
        study.label(arm),
        record.model,
        record.benchmark,
        f"{arm.n_items}{repeats}",
        f"{arm.throughput_tok_s:.1f}",
        show(study.speedup(arm), 2),
        show(arm.tau, 2, interval=False),
        "-" if accuracy is None else f"{100 * accuracy:.1f} %",
        show(study.recovery(arm), 0) if has_recovery(arm) else "-",
    )


def has_recovery(arm: Arm) -> bool:
    """Only lossy rules have something to recover (METHOD: strict methods print `-`)."""
    return arm.record.rule not in (None, "strict")


def show(figure: Figure, digits: int, interval: bool = True) -> str:
    """`2.43 [2.31, 2.55]`, or `-`."""
    if isinstance(figure, Missing):
        return "-"
    text = f"{figure.value:.{digits}f}"
    if interval and figure.interval:
        text += " [{:.{d}f}, {:.{d}f}]".format(*figure.interval, d=digits)
    return text


def reference_notes(study: Study, arms: Sequence[Arm]) -> list[str]:
    """One line per missing reference, with the command that adds it."""
    figures = [study.speedup(arm) for arm in arms if arm.record.algorithm]
    figures += [study.recovery(arm) for arm in arms if has_recovery(arm)]
    missing = [figure for figure in figures if isinstance(figure, Missing)]
    return list(
        dict.fromkeys(f"-: {one.reason}." + (f" Add it: {one.remedy}" if one.remedy else "") for one in missing)
    )


def flag_notes(arms: Sequence[Arm]) -> list[str]:
    """What a reader must know about rows that are shown."""
    return list(dict.fromkeys(f"{flag.code}: {arm.record.place}: {flag.detail}" for arm in arms for flag in arm.flags))


def repeat_notes(study: Study, arms: Sequence[Arm]) -> list[str]:
    """Variance between restarts, apart from the interval."""
    notes = []
    for arm in arms:
        deviation = restart_deviation([cell.record.metrics["throughput_tok_s"] for cell in arm.cells])
        if deviation is not None:
            notes.append(
                f"between restarts: {arm.record.place}: {100 * deviation:.1f} % standard deviation of tok/s over {len(arm.cells)} repeats"
            )
    return notes


def no_rows(study: Study, cell_ids: Sequence[str] | None) -> list[str]:
    """Cells without a row, each with its reason."""
    known = {cell.record.cell_id for arm in study.arms for cell in arm.cells} | {
        problem.name for problem in study.problems
    }
    listed = [
        f"no row: {problem.name}: {problem.reason}"
        for problem in study.problems
        if cell_ids is None or problem.name in cell_ids
    ]
    return listed + [
        f"no row: {cell_id}: no such cell in {study.results_dir}" for cell_id in cell_ids or [] if cell_id not in known
    ]
