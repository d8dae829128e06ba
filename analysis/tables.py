"""Tables from records: the run's summary, and the paper's Tables 1 to 8 (docs/tables.md).

python -m analysis.tables summary --results results/runs
python -m analysis.tables table1 --results results/runs --paper
python -m analysis.tables all --results results/runs --format md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from analysis import paper_tables, published, settings_tables
from analysis.arms import Models, Study
from analysis.entries import Table
from analysis.render import FORMATS, Grid, render
from analysis.summary import no_rows, summary

Builder = Callable[[Study, Models], Table | Grid]
TABLES: dict[str, Builder] = {
    "table1": paper_tables.table1,
    "table2": paper_tables.table2,
    "table3": paper_tables.table3,
    "table4": paper_tables.table4,
    "table5": paper_tables.table5,
    "table6": settings_tables.table6,
    "table7": settings_tables.table7,
    "table8": settings_tables.table8,
}


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tables", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", choices=["summary", *TABLES, "all"], help="`all` is Tables 1 to 5")
    parser.add_argument(
        "--results", type=Path, default=Path("results/runs"), metavar="DIR", help="results_dir of the runs"
    )
    parser.add_argument("--model", metavar="NAME[,NAME]", help="only these models")
    parser.add_argument("--cells", help="only these cell ids, comma-separated (summary)")
    parser.add_argument("--paper", action="store_true", help="add the paper's value, the difference and a verdict")
    parser.add_argument("--format", choices=FORMATS, default="text")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Print the asked tables; return the exit status."""
    arguments = parse(argv)
    try:
        study = Study.load(arguments.results)
        models = read_models(study, arguments.model)
    except (FileNotFoundError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    if arguments.table == "summary":
        cells = arguments.cells.split(",") if arguments.cells else None
        show(summary(study, cells, models), arguments.format)
        return 0
    names = [f"table{number}" for number in range(1, 6)] if arguments.table == "all" else [arguments.table]
    for name in names:
        show(build(name, study, models, arguments), arguments.format)
    for note in no_rows(study, None):
        print(note, file=sys.stderr)
    return 0


def read_models(study: Study, text: str | None) -> Models:
    """The models of `a,b`. Raises ValueError naming one that was neither measured nor in the paper, and those that are."""
    if text is None:
        return None
    known = {*published.MODELS, *(arm.record.model for arm in study.arms)}
    asked = frozenset(text.split(","))
    for name in sorted(asked - known):
        raise ValueError(
            f"--model {name}: not in {study.results_dir} nor in the paper; expected of {', '.join(sorted(known))}"
        )
    return asked


def build(name: str, study: Study, models: Models, arguments: argparse.Namespace) -> Grid:
    """Make one table in the layout that its format asks for."""
    table = TABLES[name](study, models)
    if isinstance(table, Grid):
        return table
    return table.tidy() if arguments.format == "csv" else table.grid(arguments.paper)


def show(grid: Grid, form: str) -> None:
    """Print a table; of a CSV the notes go to stderr."""
    print(render(grid, form), end="\n\n" if form != "csv" else "\n")
    if form == "csv" and grid.notes:
        print("\n".join(grid.notes), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
