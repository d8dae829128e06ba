"""Tables from records: the run's summary, and the paper's Tables 1 to 8 (docs/tables.md).

python -m analysis.tables summary --results results/runs
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.arms import Study
from analysis.render import FORMATS, render
from analysis.summary import summary


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tables", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", choices=["summary"])
    parser.add_argument(
        "--results", type=Path, default=Path("results/runs"), metavar="DIR", help="results_dir of the runs"
    )
    parser.add_argument("--cells", help="only these cell ids, comma-separated (summary)")
    parser.add_argument("--format", choices=FORMATS, default="text")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Print the asked table; return the exit status."""
    arguments = parse(argv)
    try:
        study = Study.load(arguments.results)
    except FileNotFoundError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    cells = arguments.cells.split(",") if arguments.cells else None
    grid = summary(study, cells)
    print(render(grid, arguments.format))
    if arguments.format == "csv" and grid.notes:
        print("\n".join(grid.notes), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
