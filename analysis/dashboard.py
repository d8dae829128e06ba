"""Builds a W&B workspace with the project's views: tables' metrics, speedup against recovery, tau, acceptance.

python -m analysis.dashboard --project adaptivespec --entity NAME      # or: make wandb-dashboard
"""

from __future__ import annotations

import argparse
import os
import sys
from types import ModuleType
from typing import Any


def import_workspaces() -> tuple[ModuleType, ModuleType]:
    """Import the library. Raises SystemExit with the remedy where it is not installed."""
    try:
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as workspaces
    except ImportError:
        raise SystemExit(
            "Error: the dashboard needs the wandb-workspaces package: pip install wandb-workspaces"
        ) from None
    return workspaces, panels


def build(workspaces: ModuleType, panels: ModuleType, entity: str, project: str) -> Any:
    """Return the workspace, not saved yet."""
    bars = [
        panels.BarPlot(title=name, metrics=[name])
        for name in ("speedup", "tau", "throughput_tok_s", "accuracy", "recovery")
    ]
    scatter = panels.ScatterPlot(title="speedup against recovery", x="recovery", y="speedup", running_ymean=False)
    cost = panels.ScatterPlot(title="speedup against tau", x="tau", y="speedup", running_ymean=False)
    names = ("depth", "shapes", "shapes_over_time", "dcs")
    media = [panels.MediaBrowser(title=name, media_keys=[name]) for name in names]
    return workspaces.Workspace(
        name="AdaptiveSpec",
        entity=entity,
        project=project,
        sections=[
            workspaces.Section(name="Methods", panels=[scatter, cost, *bars], is_open=True),
            workspaces.Section(
                name="Per cell", panels=[*media, panels.MediaBrowser(title="items", media_keys=["items"])]
            ),
        ],
    )


def main(argv: list[str] | None = None) -> int:
    """Build and save the workspace; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m analysis.dashboard", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--project", default="adaptivespec", metavar="NAME")
    parser.add_argument(
        "--entity", default=os.environ.get("WANDB_ENTITY"), metavar="NAME", help="user or team (default: WANDB_ENTITY)"
    )
    arguments = parser.parse_args(argv)
    if not arguments.entity:
        print("Error: --entity is missing: give the W&B user or team, or set WANDB_ENTITY", file=sys.stderr)
        return 1
    workspaces, panels = import_workspaces()
    import wandb

    if not wandb.login(anonymous="never", timeout=30):
        print("Error: not logged in to W&B: run `wandb login`", file=sys.stderr)
        return 1
    print(build(workspaces, panels, arguments.entity, arguments.project).save().url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
