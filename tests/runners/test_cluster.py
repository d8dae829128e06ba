"""Groups as jobs: with fake engines under submitit itself, and with a stand-in for it. (A real server: test_end_to_end.)"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import submitit

from runners import cluster
from runners.cell import Cell
from runners.cluster import GroupJob, gpus_to_share, one_accelerator, run_on_cluster
from runners.display import Display
from runners.errors import UserError
from runners.group import GroupRunner, Outcome, Settings
from runners.plan import Plan, make_plan
from runners.resolve import Ready
from tests.runners.conftest import Tokenizer
from tests.runners.test_server import TIMEOUTS, FakeSpec, info


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of our own, and an environment that is put back."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_no_two_groups_share_a_gpu() -> None:
    with one_accelerator(("2", "3")):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
        with one_accelerator(("2", "3")):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
            with pytest.raises(UserError, match="GPU 2, 3: all are held"), one_accelerator(("2", "3")):
                pass
    with one_accelerator(("2", "3")):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"


def test_without_gpus_nothing_is_chosen() -> None:
    with one_accelerator(()):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_only_what_the_person_left_visible_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert gpus_to_share(2) == ("2", "3")
    assert gpus_to_share(0) == ()
    with pytest.raises(UserError, match=r"launcher\.gpus=3, but CUDA_VISIBLE_DEVICES=2,3 leaves 2"):
        gpus_to_share(3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpus_to_share(2) == ("0", "1")


class Job:
    """One of submitit's: fails its group, or never ends."""

    job_id = "1"

    def __init__(self, group: GroupJob, ends: bool) -> None:
        self.group, self.ends, self.cancelled = group, ends, False

    def done(self) -> bool:
        return self.ends

    def exception(self) -> None:
        return None

    def result(self) -> tuple[list[Outcome], int]:
        return [Outcome(cell, None, None, "broke") for cell in self.group.cells], 1

    def cancel(self, check: bool) -> None:
        self.cancelled = True


Launch = Callable[..., tuple[list[Outcome], GroupRunner]]


@pytest.fixture
def jobs() -> list[Job]:
    """What was submitted."""
    return []


@pytest.fixture
def launch(jobs: list[Job], cell_of: Callable[..., Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Run three groups, one job at a time."""

    def make(
        ends: bool = True, fail_fast: bool = False, device: str = "cpu", **launcher: Any
    ) -> tuple[list[Outcome], GroupRunner]:
        class Executor:
            def __init__(self, **_: Any) -> None: ...

            def update_parameters(self, **_: Any) -> None: ...

            def submit(self, group: GroupJob) -> Job:
                jobs.append(Job(group, ends))
                return jobs[-1]

        monkeypatch.setattr(submitit, "AutoExecutor", Executor)
        cells = [cell_of("method=vanilla", f"seed={seed}") for seed in range(3)]
        cells = [replace(cell, engine={**cell.engine, "device": device}) for cell in cells]
        plan: Plan = make_plan(cells, None, 1, False)
        settings = Settings(tmp_path, {}, None, 1, fail_fast, {}, {})
        runner = GroupRunner(settings, Display(3, tmp_path))
        node = {"kind": "local", "jobs": 1, "gpus": 0, "timeout_min": 1, "parameters": {}, **launcher}
        return run_on_cluster(plan, runner, node), runner

    monkeypatch.setattr(cluster.time, "sleep", lambda seconds: None)
    return make


@pytest.mark.parametrize(("fail_fast", "n_groups"), [(False, 3), (True, 1)])
def test_r106_fail_fast_submits_no_further_group(launch: Launch, fail_fast: bool, n_groups: int) -> None:
    outcomes, runner = launch(fail_fast=fail_fast)
    assert [outcome.failure for outcome in outcomes] == ["broke"] * n_groups
    assert runner.server_starts == n_groups


def test_an_interrupt_cancels_what_runs(launch: Launch, jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch(ends=False, jobs=2)
    assert [job.cancelled for job in jobs] == [True, True]


def test_cells_for_a_gpu_are_refused_where_a_job_would_see_none(launch: Launch) -> None:
    with pytest.raises(UserError, match=r"launcher\.gpus=0: .*engine\.device=cuda"):
        launch(device="cuda")
    assert len(launch(device="cuda", kind="slurm")[0]) == 3
    assert len(launch(device="cuda", parameters={"gpus_per_node": 2})[0]) == 3


def test_a_launcher_without_jobs_is_refused(launch: Launch) -> None:
    with pytest.raises(UserError, match=r"launcher\.jobs=0"):
        launch(jobs=0)


def fake_spec(waiting: Sequence[Ready]) -> FakeSpec:
    ready = waiting[0]
    told = json.dumps(info(model_path=str(ready.target.path), dtype="float32"))
    return FakeSpec(ready.target.path, None, None, None, None, ready.cell.engine, 0, told=told)


@dataclass(frozen=True)
class MeetingJob(GroupJob):
    """Begins when another one has come too, and has a fake engine: jobs are processes, which no fixture reaches."""

    def __call__(self) -> tuple[list[Outcome], int]:
        (self.settings.results_dir / f"here-{os.getpid()}").touch()
        deadline = time.monotonic() + 120
        while len(list(self.settings.results_dir.glob("here-*"))) < 2:
            assert time.monotonic() < deadline, "they run one after the other"
            time.sleep(0.1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("runners.resolve.load_tokenizer", lambda folder: Tokenizer(3, "x"))
            patch.setattr("runners.group.server_spec", fake_spec)
            return super().__call__()


@pytest.mark.timeout(300)
def test_two_groups_at_once_by_submitit(
    resolve: Callable[..., Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "GroupJob", MeetingJob)
    cells = [resolve("method=vanilla", f"seed={seed}").cell for seed in range(2)]
    results = tmp_path / "runs"
    timeouts = {**TIMEOUTS, "start_s": 100.0, "request_s": 50.0}  # two start at once
    settings = Settings(results, timeouts, None, 1, False, {"workers": 1, "allow_unconfined": False}, {})
    runner = GroupRunner(settings, Display(2, results))
    node = {"kind": "local", "jobs": 2, "gpus": 0, "timeout_min": 5, "parameters": {}}
    outcomes = run_on_cluster(make_plan(cells, None, 1, False), runner, node)
    assert [outcome.failure for outcome in outcomes] == [None, None]
    assert len(list(results.glob("*/record.json"))) == runner.server_starts == 2
