"""Groups on other machines or other GPUs: each server group is one job, handed whole to submitit.

    python run.py +sweep=all launcher=local launcher.jobs=4          # one node, four GPUs, one group on each
    python run.py +sweep=all launcher=slurm launcher.parameters.slurm_partition=gpu

Not Hydra's submitit launcher: that makes a job per cell, and cells of one group must share their server.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from runners.cell import Cell, non_negative, positive
from runners.display import Display
from runners.errors import UserError
from runners.group import GroupRunner, Outcome, Settings, run_group
from runners.plan import Plan
from runners.resolve import Resolver

POLL_S = 1.0


@dataclass(frozen=True)
class GroupJob:
    """A picklable unit of work: run one group's cells."""

    cells: tuple[Cell, ...]
    settings: Settings
    gpus: tuple[str, ...]
    """Accelerators of the node to choose from; none where the scheduler has chosen (or there are none)."""

    def __call__(self) -> tuple[list[Outcome], int]:
        """Run on the node that got the job; return the outcomes and the server starts."""
        runner = GroupRunner(self.settings, Display(len(self.cells), self.settings.results_dir))
        with one_accelerator(self.gpus):
            return run_group(self.cells, runner, Resolver()), runner.server_starts


def gpus_to_share(count: int) -> tuple[str, ...]:
    """Name the GPUs to share out: of those that CUDA_VISIBLE_DEVICES leaves us, where it is set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(map(str, range(count)))
    names = tuple(name.strip() for name in visible.split(",") if name.strip())
    if count > len(names):
        raise UserError(
            f"launcher.gpus={count}, but CUDA_VISIBLE_DEVICES={visible} leaves {len(names)}: expected no more than those"
        )
    return names[:count]


@contextlib.contextmanager
def one_accelerator(gpus: tuple[str, ...]) -> Iterator[None]:
    """Hold one of these GPUs for this process alone: two groups on one GPU would time each other."""
    if not gpus:
        yield
        return
    # Not in results_dir: runs into two results folders share the node's GPUs.
    locks = Path(tempfile.gettempdir()) / f"adaptivespec-gpus-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    for name in gpus:
        lock = FileLock(locks / f"{name.replace('/', '_')}.lock")
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
        if lock.is_locked:
            break
    else:
        raise UserError(
            f"GPU {', '.join(gpus)}: all are held by other groups, of this run or another; set launcher.jobs to at most "
            "launcher.gpus, or wait for the other run"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = name
    try:
        yield
    finally:
        lock.release()


def run_on_cluster(plan: Plan, runner: GroupRunner, launcher: Mapping[str, Any]) -> list[Outcome]:
    """Submit every group and wait for all. Raises UserError where submitit is missing; a lost job fails its cells."""
    jobs = positive("launcher.jobs", launcher["jobs"]) or 1
    gpus = gpus_to_share(non_negative("launcher.gpus", launcher["gpus"]))
    hidden = launcher["kind"] == "local" and not gpus and not launcher["parameters"].get("gpus_per_node")
    if hidden and any(cell.engine["device"] == "cuda" for group in plan.groups for cell in group.cells):
        raise UserError(  # submitit hides all cards from a local job that asks for none
            "launcher.gpus=0: these cells have engine.device=cuda and would find no GPU; expected how many of this machine's "
            "GPUs to share out, one to a group (launcher.gpus=4)"
        )
    if importlib.util.find_spec("submitit") is None:
        raise UserError(f"launcher={launcher['kind']} needs submitit: pip install '.[slurm]' in a checkout")
    import submitit

    settings = runner.settings
    executor = submitit.AutoExecutor(folder=settings.results_dir / "logs" / "submitit", cluster=launcher["kind"])
    executor.update_parameters(timeout_min=launcher["timeout_min"], **launcher["parameters"])
    waiting = [GroupJob(group.cells, settings, gpus) for group in plan.groups]
    running: list[tuple[Any, GroupJob]] = []
    outcomes: list[Outcome] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                group = waiting.pop(0)
                running.append((executor.submit(group), group))
            for job, group in [pair for pair in running if pair[0].done()]:
                running.remove((job, group))
                ended, starts = collect(job, group)
                outcomes += ended
                runner.server_starts += starts
            if settings.fail_fast and any(outcome.failure for outcome in outcomes):
                waiting.clear()  # what runs is let finish
            time.sleep(POLL_S)
    finally:
        for job, _ in running:  # an interrupt
            job.cancel(check=False)
    return outcomes


def collect(job: Any, group: GroupJob) -> tuple[list[Outcome], int]:
    """Take a job's outcomes and server starts; the cells of one that died are failures with its reason."""
    error = job.exception()
    if error is None:
        result: tuple[list[Outcome], int] = job.result()
        return result
    reason = str(error).strip().splitlines()[-1]
    return [Outcome(cell, None, None, f"job {job.job_id}: {reason}") for cell in group.cells], 0
