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
        rows.append((*named(study, arm), milliseconds, "-" if cost is None else f"{cost:.2f}", show(arm.tau, 2)))
    header = ("method", "model", "benchmark", "ms / step", "vanilla steps", "tau")
    return Grid("What a step costs", header, tuple(rows))


def named(study: Study, arm: Arm) -> tuple[str, str, str]:
    """Method, model and benchmark: without these a page of several models shows one arm twice."""
    return study.label(arm), arm.record.model, arm.record.benchmark


def ratio_table(study: Study, arms: Sequence[Arm]) -> Grid:
    """Throughput ratios between arms of the same items and rounds."""
    rows = [
        (f"{study.label(ours)} / {study.label(theirs)}", *named(study, ours)[1:], show(found, 3), what)
        for ours, theirs, what, found in ratios(arms)
    ]
    return Grid("Ratios of throughput", ("arms", "model", "benchmark", "ratio", "meaning"), tuple(rows))


def ratios(arms: Sequence[Arm]) -> list[tuple[Arm, Arm, str, Figure]]:
    """The ratios of `RATIOS` whose arms were both measured, in the same way and with the same drafter."""
    return [
        (ours, theirs, what, throughput_ratio(ours, theirs))
        for above, below, what in RATIOS
        for ours in arms
        for theirs in arms
        if is_called(ours, above) and is_called(theirs, below) and not differences(ours.record, theirs.record)
    ]


def is_called(arm: Arm, name: str) -> bool:
    """Whether `name` is the arm's label or its method."""
    return name in (arm.record.label, arm.record.method)


def origins(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Each pair of code and machine that a cell of these arms comes from, with the day it was begun; the host's hash left out."""
    found: dict[str, dict[str, Any]] = {}
    for cell in (cell for arm in arms for cell in arm.cells):
        origin = cell.record.provenance
        one = {
            "begun": str(origin["created_at"])[:10],
            "git_sha": origin["git_sha"],
            "git_dirty": origin["git_dirty"],
            "machine": {k: v for k, v in origin["machine"].items() if k != "hostname_sha256"},
        }
        found.setdefault(json.dumps(one, sort_keys=True), one)
    return sorted(found.values(), key=lambda one: one["begun"])


def sentence(origin: dict[str, Any]) -> str:
    """`Measured on 2026-11-30 at 0123456789 on AMD EPYC (2 cores, 23.5 GiB).`"""
    machine = origin["machine"]
    code = f"{str(origin['git_sha'])[:10]}{' (changed)' if origin['git_dirty'] else ''}"
    where = ", ".join([*machine["gpu"], f"{machine['cpu']} ({machine['cores']} cores, {machine['memory_gib']} GiB)"])
    return f"Measured on {origin['begun']} at {code} on {where}."


def document(study: Study, arms: Sequence[Arm]) -> dict[str, Any]:
    """The same figures for programs."""

    def plain(figure: Figure) -> dict[str, Any] | None:
        return None if isinstance(figure, Missing) else {"value": figure.value, "interval": figure.interval}

    def names(arm: Arm) -> dict[str, str]:
        return dict(zip(("label", "model", "benchmark"), named(study, arm), strict=True))

    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "origins": origins(arms),
        "arms": [
            {
                **names(arm),
                "tok_s": arm.throughput_tok_s,
                "speedup": plain(study.speedup(arm)),
                "tau": plain(arm.tau),
            }
            for arm in arms
        ],
        "ratios": [
            {**names(ours), "arms": f"{study.label(ours)} / {study.label(theirs)}", **(plain(found) or {})}
            for ours, theirs, _, found in ratios(arms)
        ],
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
    tables = [render(grid, "md") for grid in (summary(study), step_table(study, arms), ratio_table(study, arms))]
    page = "\n\n".join(["\n".join(sentence(origin) for origin in origins(arms)), *tables])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".md").write_text(page + "\n", encoding="utf-8")
    arguments.out.with_suffix(".json").write_text(json.dumps(document(study, arms), indent=1) + "\n", encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
