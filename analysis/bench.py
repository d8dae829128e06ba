"""The bench's page: speedups with intervals, what a step costs by shape, and what our plugin costs (`make bench-cpu`).

python -m analysis.bench --results results/bench/runs --out results/bench/cpu
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.arms import Arm, Figure, Missing, Study, throughput_ratio
from analysis.compare import differences
from analysis.render import Grid, render
from analysis.summary import order, show, summary

# Numerator and denominator, each a label or a method; what the ratio of their throughputs says.
RATIOS = (
    ("static (3,1,4)", "eagle3", "our plugin against SGLang's own worker, same work"),
    ("dynamic", "eagle3", "dynamic against eagle3"),
    ("combined", "eagle3", "combined against eagle3"),
)


def step_table(study: Study, arms: Sequence[Arm]) -> Grid:
    """Milliseconds of a step, prefill included, and in units of vanilla's; `-` where steps of several requests overlap."""
    rows = []
    for arm in arms:
        cost = study.step_cost(arm)
        tokens_per_step = 1.0 if isinstance(arm.tau, Missing) else arm.tau.value
        alone = arm.record.engine["concurrency"] == 1
        milliseconds = f"{1000 * tokens_per_step / arm.throughput_tok_s:.1f}" if alone else "-"
        rows.append((study.label(arm), milliseconds, "-" if cost is None else f"{cost:.2f}", show(arm.tau, 2)))
    return Grid("What a step costs", ("method", "ms / step", "vanilla steps", "tau"), tuple(rows))


def ratio_table(study: Study, arms: Sequence[Arm]) -> Grid:
    """Throughput ratios between arms of the same items and rounds."""
    rows = [(names, show(found, 3), what) for names, what, found in ratios(study, arms)]
    return Grid("Ratios of throughput", ("arms", "ratio", "meaning"), tuple(rows))


def ratios(study: Study, arms: Sequence[Arm]) -> list[tuple[str, str, Figure]]:
    """The ratios of `RATIOS` whose arms were both measured, in the same way and with the same drafter."""
    return [
        (f"{study.label(ours)} / {study.label(theirs)}", what, throughput_ratio(ours, theirs))
        for above, below, what in RATIOS
        for ours in arms
        for theirs in arms
        if is_called(ours, above) and is_called(theirs, below) and not differences(ours.record, theirs.record)
    ]


def is_called(arm: Arm, name: str) -> bool:
    """Whether `name` is the arm's label or its method."""
    return name in (arm.record.label, arm.record.method)


def document(study: Study, arms: Sequence[Arm]) -> dict[str, Any]:
    """The same figures for programs."""

    def plain(figure: Figure) -> dict[str, Any] | None:
        return None if isinstance(figure, Missing) else {"value": figure.value, "interval": figure.interval}

    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {k: v for k, v in arms[0].record.provenance["machine"].items() if k != "hostname_sha256"}
        if arms
        else None,
        "git_sha": arms[0].record.provenance.get("git_sha") if arms else None,
        "arms": [
            {
                "label": study.label(arm),
                "tok_s": arm.throughput_tok_s,
                "speedup": plain(study.speedup(arm)),
                "tau": plain(arm.tau),
            }
            for arm in arms
        ],
        "ratios": [{"arms": names, **(plain(found) or {})} for names, _, found in ratios(study, arms)],
    }


def main(argv: list[str] | None = None) -> int:
    """Write OUT.md and OUT.json, print the page; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m analysis.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, metavar="DIR", help="results_dir of the runs")
    parser.add_argument("--out", type=Path, required=True, metavar="STEM", help="writes STEM.md and STEM.json")
    arguments = parser.parse_args(argv)
    try:
        study = Study.load(arguments.results)
    except FileNotFoundError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    arms = sorted(study.arms, key=order)
    page = "\n\n".join(
        render(grid, "md") for grid in (summary(study), step_table(study, arms), ratio_table(study, arms))
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".md").write_text(page + "\n", encoding="utf-8")
    arguments.out.with_suffix(".json").write_text(json.dumps(document(study, arms), indent=1) + "\n", encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
