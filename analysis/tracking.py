"""Hands finished records to Weights & Biases. The local record is the truth: nothing here is read back.

    python -m analysis.tracking --results results/runs --mode offline --project adaptivespec

Run id = cell id: logging a cell again goes to the same run. What was logged is remembered by its content in `RESULTS/wandb/logged.json`,
so an unchanged cell is not logged twice. Offline runs are complete: `wandb sync RESULTS/wandb/offline-run-*` uploads them later.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from analysis.arms import Arm, Missing, Study
from analysis.checked import Checked
from analysis.figures import cell_figures

COLUMNS = (
    "item",
    "output_tokens",
    "latency_s",
    "verify_steps",
    "promotions",
    "finish_reason",
    "correct",
    "paper_correct",
)


def import_wandb() -> ModuleType:
    """Import the library. Raises SystemExit with the remedy where it is not installed."""
    try:
        import wandb
    except ImportError:
        raise SystemExit(
            "Error: tracking needs the wandb package, which is not installed: pip install wandb, or tracking.mode=off"
        ) from None
    module: ModuleType = wandb
    return module


def fingerprint(study: Study, arm: Arm, cell: Checked) -> str:
    """Hash of what would be logged: a cell graded or measured again has another one, and one whose reference came later."""
    digest = hashlib.sha256()
    for name in ("record.json", "grades.jsonl"):
        digest.update((cell.record.folder / name).read_bytes())
    digest.update(json.dumps([summary_of(study, arm, cell), flag_codes(cell)], sort_keys=True).encode())
    return digest.hexdigest()


def flag_codes(cell: Checked) -> list[str]:
    """What a run is flagged with."""
    return [flag.code for flag in cell.flags]


def summary_of(study: Study, arm: Arm, cell: Checked) -> dict[str, Any]:
    """The record's metrics and, from the arm it belongs to, the ratios with their intervals."""
    values: dict[str, Any] = {
        name: value for name, value in cell.record.metrics.items() if not isinstance(value, Mapping)
    }
    for name, figure in (("speedup", study.speedup(arm)), ("recovery", study.recovery(arm))):
        if isinstance(figure, Missing) or arm.record.algorithm is None:
            continue
        values[name] = figure.value
        if figure.interval:
            values[f"{name}_low"], values[f"{name}_high"] = figure.interval
    return values


def group_of(arm: Arm) -> str:
    """Runs of one sweep stand together: same model and protocol."""
    record = arm.record
    return f"{record.model}-{record.cell['benchmark']['protocol']}"


def log_cell(wandb: ModuleType, study: Study, arm: Arm, cell: Checked, mode: str, project: str) -> None:
    """Write one run: config, summary, per-item table, figures."""
    record = cell.record
    run = wandb.init(
        id=record.cell_id, name=record.place, project=project, group=group_of(arm), tags=[record.method, record.model, record.benchmark],
        mode=mode, dir=str(study.results_dir), resume="allow" if mode == "online" else None,
        reinit="finish_previous", settings=wandb.Settings(silent=True, console="off"),
        config={"cell": record.cell, "provenance": record.provenance, "flags": flag_codes(cell)},
    )  # fmt: skip
    frame = cell.frame.reset_index()[list(COLUMNS)]
    run.log({"items": wandb.Table(dataframe=frame.astype(object).where(frame.notna(), None)), **cell_figures(cell)})
    run.summary.update(summary_of(study, arm, cell))
    run.finish()


def track(results_dir: Path, mode: str, project: str) -> tuple[int, int]:
    """Log every valid cell that is not logged yet. Returns (logged, unchanged)."""
    wandb = import_wandb()
    study = Study.load(results_dir)
    ledger_path = results_dir / "wandb" / "logged.json"
    ledger: dict[str, str] = json.loads(ledger_path.read_text()) if ledger_path.is_file() else {}
    logged = unchanged = 0
    for arm in study.arms:
        for cell in arm.cells:
            key, now = f"{mode} {project} {cell.record.cell_id}", fingerprint(study, arm, cell)
            if ledger.get(key) == now:
                unchanged += 1
                continue
            log_cell(wandb, study, arm, cell, mode, project)
            ledger[key] = now
            ledger_path.parent.mkdir(exist_ok=True)
            ledger_path.write_text(json.dumps(ledger, indent=1))
            logged += 1
    return logged, unchanged


def main(argv: list[str] | None = None) -> int:
    """Log a results folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m analysis.tracking", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results/runs"), metavar="DIR")
    parser.add_argument("--mode", choices=["offline", "online"], default="offline")
    parser.add_argument("--project", default="adaptivespec", metavar="NAME")
    arguments = parser.parse_args(argv)
    try:
        logged, unchanged = track(arguments.results, arguments.mode, arguments.project)
    except FileNotFoundError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    later = (
        f"; upload later: wandb sync {arguments.results}/wandb/offline-run-*"
        if arguments.mode == "offline" and logged
        else ""
    )
    print(f"W&B {arguments.mode}: {logged} cells logged, {unchanged} unchanged{later}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
