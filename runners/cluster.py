"""Groups on other machines or other GPUs: each server group is one job, handed whole to submitit.

    python run.py +sweep=all launcher=local launcher.jobs=4          # one node, four GPUs, one group on each
    python run.py +sweep=all launcher=slurm launcher.parameters.slurm_partition=gpu

Not Hydra's submitit launcher: that makes a job per cell, and cells of one group must share their server.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from runners.cell import Cell
from runners.display import Display
from runners.errors import UserError
from runners.group import GroupRunner, Outcome, Settings
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
        resolver = Resolver()
        readies = [resolver.resolve(cell) for cell in self.cells]
        with one_accelerator(self.settings.results_dir, self.slots):
            return GroupRunner(self.settings, Display(len(readies), self.settings.results_dir)).run(readies)


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
    if launcher["kind"] == "slurm":
        executor.update_parameters(slurm_array_parallelism=launcher["jobs"])
    waiting = [GroupJob(group.cells, settings, launcher["gpus"]) for group in plan.groups]
    outcomes: list[Outcome] = []
    while waiting:
        batch, waiting = waiting[: launcher["jobs"]], waiting[launcher["jobs"] :]
        outcomes += collect([executor.submit(job) for job in batch], batch)
    return outcomes


def collect(jobs: Sequence[Any], groups: Sequence[GroupJob]) -> list[Outcome]:
    """Wait for jobs; the cells of one that died are failures with its reason."""
    outcomes: list[Outcome] = []
    for job, group in zip(jobs, groups, strict=True):
        error = job.exception()
        if error is None:
            outcomes += job.result()
            continue
        reason = str(error).strip().splitlines()[-1]
        outcomes += [Outcome(Resolver().resolve(cell), None, f"job {job.job_id}: {reason}") for cell in group.cells]
    return outcomes
