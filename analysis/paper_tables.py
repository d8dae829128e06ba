"""Tables 1 to 5 in the paper's layout, from records; missing cells print as missing.

python -m analysis.tables table1 --results results/runs --paper
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from analysis import published, stats
from analysis.arms import Arm, Figure, Missing, Models, Study
from analysis.blocks import Block, blocks, columns
from analysis.entries import Entry, Table
from analysis.published import Point, lint
from analysis.stats import Estimate
from analysis.verdict import verdict

Keys = Mapping[str, str | float | None]
Source = tuple[str, Keys]
NOT_MEASURED = Missing("not measured")
STRICT = Entry(NOT_MEASURED, fixed="-")
DIVISORS = (0.2, 0.3, 0.4, 0.5)
KAPPAS = {"lossy": (0.1, 0.2, 0.3), "combined": (0.05, 0.1, 0.2, 0.3)}


def table1(study: Study, models: Models) -> Table:
    """Main results: seven methods (vanilla is the baseline), and below them what we add."""
    table = Table("Table 1: main results", ("Model", "Method"))
    chosen = blocks(study, models)
    for block in chosen:
        for method, title in published.METHODS.items():
            for benchmark in columns(chosen):
                arm = block.cell(method, benchmark)
                keys = {"model": block.model, "method": method, "benchmark": benchmark}
                strict = method in published.STRICT_METHODS
                add_cell(table, study, block, arm, (block.label, title), benchmark, ("table1", keys), strict)
        add_best_static(table, study, block, columns(chosen))
        add_paper_grader(table, study, block, columns(chosen))
    table.notes += lint(own_points(table))
    return table


def add_cell(
    table: Table, study: Study, block: Block, arm: Arm | None, row: tuple[str, ...], benchmark: str,
    source: Source | None, strict: bool, with_recovery: bool = True,
) -> None:  # fmt: skip
    """Add speedup, tau and recovery of one arm; `source` says where the paper has them."""
    group = published.BENCHMARKS.get(benchmark, benchmark)
    figures: dict[str, Figure] = {
        "speedup": study.speedup(arm) if arm else NOT_MEASURED,
        "tau": arm.tau if arm else NOT_MEASURED,
    }
    for metric, figure in figures.items():
        table.add(row, (group, metric), entry(figure, metric, block, source))
    if with_recovery and strict:
        table.add(row, (group, "recovery"), STRICT)
    elif with_recovery:
        figure = study.recovery(arm) if arm else NOT_MEASURED
        table.add(row, (group, "recovery"), entry(figure, "recovery", block, source))


def entry(figure: Figure, metric: str, block: Block, source: Source | None) -> Entry:
    """Put the paper's figure beside ours, where it may stand there."""
    paper = published.lookup(source[0], metric, **source[1]) if source and block.in_paper else None
    return Entry(figure) if paper is None else Entry(figure, paper, verdict(figure, paper, metric, block))


def add_best_static(table: Table, study: Study, block: Block, benchmarks: list[str]) -> None:
    """Our addition: the fastest static strict tree that was measured, which the paper never shows."""
    shape = block.best_static(study)
    if shape is None or not any(arm.record.method == "static" for arm in block.arms):
        return
    row = (block.label, "Best static strict ({},{},{})".format(*shape))
    for benchmark in benchmarks:
        add_cell(table, study, block, block.static(benchmark, shape), row, benchmark, None, strict=True)


def add_paper_grader(table: Table, study: Study, block: Block, benchmarks: list[str]) -> None:
    """Our addition: recovery by the grader that the paper used, beside the correct one's."""
    for method in ("fly", "lossy", "combined"):
        for benchmark in benchmarks:
            arm = block.cell(method, benchmark)
            if arm is None or arm.accuracy("paper_correct") is None:
                continue
            keys = {"model": block.model, "method": method, "benchmark": benchmark}
            figure = study.recovery(arm, "paper_correct")
            row = (block.label, f"{published.METHODS[method]}, paper's grader")
            column = (published.BENCHMARKS.get(benchmark, benchmark), "recovery")
            table.add(row, column, entry(figure, "recovery", block, ("table1", keys)))


def own_points(table: Table) -> list[Point]:
    """Our own cells, for the lint."""
    found = []
    for row in table.rows:
        for group, metric in table.columns:
            speedup = table.entries.get((row, (group, metric))) if metric == "speedup" else None
            tau = table.entries.get((row, (group, "tau")))
            if speedup and tau and isinstance(speedup.figure, Estimate) and isinstance(tau.figure, Estimate):
                name = ", ".join(part for part in row if part)
                found.append(Point(name, f"ours, {name}, {group}", speedup.figure.value, tau.figure.value))
    return found


def table2(study: Study, models: Models) -> Table:
    """Tree policy x accept rule, averaged over the benchmarks."""
    table = Table("Table 2: static and dynamic trees, strict and lossy verification", ("Model", "Verif."))
    chosen = blocks(study, models)
    grid = {
        ("Strict", "Static tree"): "eagle3",
        ("Strict", "Dynamic tree"): "dynamic",
        ("Lossy", "Static tree"): "lossy",
        ("Lossy", "Dynamic tree"): "combined",
    }
    for block in chosen:
        for (rule, tree), method in grid.items():
            for metric in ("speedup", "tau", "recovery"):
                figure = block_mean(study, block, method, metric)
                paper = published.table2(block.model, method, metric) if block.in_paper else None
                add_mean(table, (block.label, rule), (tree, metric), figure, paper, metric, block, method)
    papers = [block for block in chosen if block.in_paper or not block.arms]
    if {block.model for block in papers} == set(published.MODELS) and len(papers) == len(published.MODELS):
        for (rule, tree), method in grid.items():
            for metric in ("speedup", "tau", "recovery"):
                figure = mean_of([block_mean(study, block, method, metric) for block in papers])
                add_mean(
                    table,
                    ("Average", rule),
                    (tree, metric),
                    figure,
                    published.table2(None, method, metric),
                    metric,
                    papers[0],
                    method,
                )
    return table


def add_mean(
    table: Table, row: tuple[str, ...], column: tuple[str, str], figure: Figure, paper: float | None, metric: str, block: Block, method: str
) -> None:  # fmt: skip
    """Add a mean; a strict method's recovery is 100 by definition."""
    if metric == "recovery" and method in published.STRICT_METHODS:
        table.add(row, column, Entry(figure, fixed="missing" if isinstance(figure, Missing) else "100"))
    else:
        table.add(row, column, Entry(figure, paper, None if paper is None else verdict(figure, paper, metric, block)))


def block_mean(study: Study, block: Block, method: str, metric: str) -> Figure:
    """Mean over the paper's benchmarks; outside the paper's models over those that were measured."""
    benchmarks = list(published.BENCHMARKS) if block.model in published.MODELS else block.benchmarks
    figures: list[Figure] = []
    for benchmark in benchmarks:
        arm = block.cell(method, benchmark)
        strict_recovery = metric == "recovery" and method in published.STRICT_METHODS
        measure: dict[str, Callable[[Arm], Figure]] = {
            "speedup": study.speedup,
            "tau": lambda one: one.tau,
            "recovery": study.recovery,
        }
        figures.append(NOT_MEASURED if arm is None else Estimate(100.0) if strict_recovery else measure[metric](arm))
    return mean_of(figures)


def mean_of(figures: list[Figure]) -> Figure:
    """Mean of all, or missing where one is."""
    estimates = [figure for figure in figures if isinstance(figure, Estimate)]
    lacking = [figure for figure in figures if isinstance(figure, Missing)]
    if lacking or not estimates:
        return lacking[0] if lacking else NOT_MEASURED
    return stats.mean(estimates)


def table3(study: Study, models: Models) -> Table:
    """The divisor d of the dynamic tree policy."""
    table = Table("Table 3: divisor d, dynamic tree, strict", ("Model", "d"))
    chosen = blocks(study, models)
    for block in chosen:
        for d in DIVISORS:
            for benchmark in columns(chosen):
                keys: Keys = {"model": block.model, "d": d, "benchmark": benchmark}
                arm = block.find("dynamic", benchmark, d=d)
                add_cell(
                    table,
                    study,
                    block,
                    arm,
                    (block.label, f"{d:g}"),
                    benchmark,
                    ("table3", keys),
                    True,
                    with_recovery=False,
                )
    return table


def table4(study: Study, models: Models) -> Table:
    """The margin threshold kappa: (a) lossy-only, (b) combined."""
    table = Table("Table 4: margin threshold kappa", ("", "Model", "kappa"))
    chosen = blocks(study, models)
    for (method, kappas), part in zip(KAPPAS.items(), ("(a) Lossy-only", "(b) Combined"), strict=True):
        for block in chosen:
            for kappa in kappas:
                for benchmark in columns(chosen):
                    keys: Keys = {
                        "method": method,
                        "model": block.model,
                        "kappa": kappa,
                        "benchmark": benchmark,
                    }
                    arm = block.find(method, benchmark, kappa, published.d(method, block.model, benchmark))
                    add_cell(
                        table,
                        study,
                        block,
                        arm,
                        (part, block.label, f"{kappa:.2f}"),
                        benchmark,
                        ("table4", keys),
                        strict=False,
                    )
    return table


def table5(study: Study, models: Models) -> Table:
    """tau of static EAGLE-3 (3,1,4), as the engine reports it; below each model the exact mean per step."""
    table = Table("Table 5: tau of static EAGLE-3 (3,1,4)", ("Target model",))
    chosen = blocks(study, models)
    for block in chosen:
        for benchmark in columns(chosen):
            arm = block.find("eagle3", benchmark)
            group = published.BENCHMARKS.get(benchmark, benchmark)
            keys = {"model": block.model, "benchmark": benchmark}
            table.add(
                (block.label,), (group, "tau"), entry(arm.tau if arm else NOT_MEASURED, "tau", block, ("table5", keys))
            )
        for benchmark in columns(chosen):
            arm = block.find("eagle3", benchmark)
            if arm and arm.committed_per_step is not None:
                column = (published.BENCHMARKS.get(benchmark, benchmark), "tau")
                table.add((f"{block.label}, exact per step",), column, Entry(Estimate(arm.committed_per_step)))
    return table
