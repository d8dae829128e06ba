"""Groups on other machines or other GPUs: each server group is one job, handed whole to submitit.

    python run.py +sweep=all launcher=local launcher.jobs=4          # one node, four GPUs, one group on each
    python run.py +sweep=all launcher=slurm launcher.parameters.slurm_partition=gpu

Not Hydra's submitit launcher: that makes a job per cell, and cells of one group must share their server.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from runners.cell import Cell
from runners.display import Display
from runners.errors import UserError
from runners.group import GroupRunner, Outcome, Settings, run_group
from runners.plan import Plan
from runners.resolve import Resolver


@dataclass(frozen=True)
class GroupJob:
    """A picklable unit of work: run one group's cells."""

    cells: tuple[Cell, ...]
    settings: Settings
    slots: int
    """Accelerators of the node to choose from; 0 where the scheduler has chosen (or there are none)."""

    def __call__(self) -> list[Outcome]:
        """Run on the node that got the job."""
        runner = GroupRunner(self.settings, Display(len(self.cells), self.settings.results_dir))
        with one_accelerator(self.settings.results_dir, self.slots):
            return run_group(self.cells, runner, Resolver())


@contextlib.contextmanager
def one_accelerator(results_dir: Path, slots: int) -> Iterator[None]:
    """Hold one GPU of this node for this process alone: two groups on one GPU would time each other."""
    if slots == 0:
        yield
        return
    results_dir.mkdir(parents=True, exist_ok=True)
    for index in range(slots):
        lock = FileLock(results_dir / f".gpu-{index}.lock")
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
        if lock.is_locked:
            break
    else:
        raise UserError(
            f"launcher.gpus={slots}: all are held by other groups; set launcher.jobs to at most launcher.gpus"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = str(index)
    try:
        yield
    finally:
        lock.release()


def run_on_cluster(plan: Plan, settings: Settings, launcher: Mapping[str, Any]) -> list[Outcome]:
    """Submit every group and wait for all. Raises UserError where submitit is missing; a lost job fails its cells."""
    if importlib.util.find_spec("submitit") is None:
        raise UserError(f"launcher={launcher['kind']} needs submitit: pip install 'adaptivespec[slurm]'")
    import submitit

    executor = submitit.AutoExecutor(folder=settings.results_dir / "logs" / "submitit", cluster=launcher["kind"])
    executor.update_parameters(timeout_min=launcher["timeout_min"], **launcher["parameters"])
    groups = [GroupJob(group.cells, settings, launcher["gpus"]) for group in plan.groups]
    with ThreadPoolExecutor(launcher["jobs"]) as pool:  # as many jobs under way as asked for, whatever each takes
        return [
            outcome
            for part in pool.map(lambda group: collect(executor.submit(group), group), groups)
            for outcome in part
        ]


def collect(job: Any, group: GroupJob) -> list[Outcome]:
    """Wait for a job; the cells of one that died are failures with its reason."""
    error = job.exception()
    if error is None:
        outcomes: list[Outcome] = job.result()
        return outcomes
    reason = str(error).strip().splitlines()[-1]
    return [Outcome(cell, None, None, f"job {job.job_id}: {reason}") for cell in group.cells]
