"""Writes one self-contained HTML page: tables, pictures, flags, provenance and the promotion inspector. Opens from disk, offline.

python -m analysis.report --results results/runs --out results/report/index.html
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from analysis import paper_tables, settings_tables, stats
from analysis.arms import Arm, Missing, Study, paired
from analysis.entries import Table
from analysis.figures import cell_figures, study_figures
from analysis.inspector import inspected
from analysis.render import Grid
from analysis.summary import no_rows, order, summary

BUILDERS = (
    paper_tables.table1, paper_tables.table2, paper_tables.table3, paper_tables.table4, paper_tables.table5,
    settings_tables.table6, settings_tables.table7, settings_tables.table8,
)  # fmt: skip
TRACED_CELLS = 6
ITEMS_PER_CELL = 40


def context(study: Study, per_cell: int, tokenizer: Path | None) -> dict[str, Any]:
    """Everything the page shows."""
    figures = {name: json.loads(figure.to_json()) for name, figure in all_figures(study).items()}
    return {
        "made_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "results_dir": study.results_dir.name,
        "n_cells": sum(len(arm.cells) for arm in study.arms),
        "summary": summary(study),
        "accuracy": accuracy(study),
        "tables": [as_grid(build(study, None)) for build in BUILDERS],
        "problems": no_rows(study, None),
        "flags": [(flag.code, arm.record.place, flag.detail) for arm in study.arms for flag in arm.flags],
        "provenance": provenance(study),
        "figures": embed(figures),
        "figure_names": list(figures),
        "cells": embed(inspected(study, per_cell, tokenizer)),
        "plotly": Markup(get_plotlyjs()),
    }


def as_grid(table: Table | Grid) -> Grid:
    """A table with the paper's columns."""
    return table.grid(paper=True) if isinstance(table, Table) else table


def embed(value: Any) -> Markup:
    """JSON that may stand inside a script element, whatever a model wrote."""
    text = json.dumps(value, ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def all_figures(study: Study) -> dict[str, Any]:
    """Figures over cells, then those of single traced cells."""
    figures = study_figures(study)
    traced = [
        arm
        for arm in sorted(study.arms, key=order)
        if arm.record.cell["trace"] and arm.record.tree.get("policy") != "static"
    ]
    for arm in traced[:TRACED_CELLS]:
        made = cell_figures(arm.cells[0])
        figures.update({f"{name} {arm.record.cell_id}": figure for name, figure in made.items() if name != "depth"})
    return figures


def accuracy(study: Study) -> Grid:
    """Both graders' accuracy and recovery, tau both ways, step cost, and McNemar's test against eagle3."""
    header = (
        "method", "model", "benchmark", "accuracy %", "paper's grader %", "McNemar p", "tau (engine)", "tokens/step (exact)", "step cost",
    )  # fmt: skip
    return Grid(
        "Accuracy by both graders, and what a step costs",
        header,
        tuple(detail(study, arm) for arm in sorted(study.arms, key=order)),
    )


def detail(study: Study, arm: Arm) -> tuple[str, ...]:
    """One arm's row of the accuracy table."""
    shares = [arm.accuracy(grader) for grader in ("correct", "paper_correct")]
    tau, cost = arm.tau, study.step_cost(arm)
    values = ["-" if share is None else f"{100 * share:.1f}" for share in shares]
    taus = [
        "-" if isinstance(tau, Missing) else f"{tau.value:.3f}",
        "-" if arm.committed_per_step is None else f"{arm.committed_per_step:.3f}",
    ]
    record = arm.record
    return (
        study.label(arm),
        record.model,
        record.benchmark,
        *values,
        mcnemar(study, arm),
        *taus,
        "-" if cost is None else f"{cost:.2f}",
    )


def mcnemar(study: Study, arm: Arm) -> str:
    """p-value that the arm is right as often as eagle3, first repeat; `-` where there is nothing to compare."""
    base = study.reference(arm, "eagle3") if arm.record.algorithm else Missing("")
    if isinstance(base, Missing) or base is arm or isinstance(study.recovery(arm), Missing):
        return "-"
    repeats, items = paired(arm, base, union=True)
    ours, theirs = (one.column("correct", items, repeats[:1])[:, 0] > 0 for one in (arm, base))
    return f"{stats.mcnemar_p(ours, theirs):.3f}"


def provenance(study: Study) -> Grid:
    """Where every cell comes from."""
    rows = []
    for arm in sorted(study.arms, key=order):
        for cell in arm.cells:
            origin, record = cell.record.provenance, cell.record
            machine = origin["machine"]
            where = ", ".join(machine["gpu"]) or f"{machine['cpu']} ({machine['cores']} cores)"
            code = f"{str(origin['git_sha'])[:10]}{' (changed)' if origin['git_dirty'] else ''}"
            packages = ", ".join(f"{name} {origin['packages'].get(name, '?')}" for name in ("sglang", "torch"))
            rows.append(
                (record.cell_id, code, where, packages, str(origin["created_at"])[:19], str(len(record.faults)))
            )
    return Grid("Provenance", ("cell", "code", "machine", "packages", "begun", "faults"), tuple(rows))


def write(study: Study, out: Path, per_cell: int = ITEMS_PER_CELL, tokenizer: Path | None = None) -> None:
    """Render the page and put it in place whole."""
    loader = jinja2.PackageLoader("analysis", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("report.html").render(context(study, per_cell, tokenizer))
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_suffix(".tmp")
    scratch.write_text(page, encoding="utf-8")
    scratch.replace(out)


def main(argv: list[str] | None = None) -> int:
    """Write the report; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results/runs"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("results/report/index.html"), metavar="FILE")
    parser.add_argument("--items", type=int, default=ITEMS_PER_CELL, help="items per cell in the promotion inspector")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="DIR",
        help="folder of the target's tokenizer.json, where the recorded one is gone",
    )
    arguments = parser.parse_args(argv)
    try:
        study = Study.load(arguments.results)
    except FileNotFoundError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    write(study, arguments.out, arguments.items, arguments.tokenizer)
    print(
        f"{arguments.out}: {sum(len(arm.cells) for arm in study.arms)} cells, {arguments.out.stat().st_size / 1e6:.1f} MB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
