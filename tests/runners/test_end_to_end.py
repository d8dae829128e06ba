"""The real server with the real demo model on the CPU: measured, lossless, resumable, and gone afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.server import MARK

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]
LIMIT = 3
ARMS = "vanilla,eagle3,combined"
COMMON = (
    "engine.device=cpu",
    "benchmark=humaneval",
    f"limit={LIMIT}",
    "engine.warmup=1",
    "engine.threads=1",  # another worker's server has the other core, and threads that wait for each other lose most
    "benchmark.protocols.default.max_new_tokens=48",
)


def command(results: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "run.py"), *COMMON, f"results_dir={results}", *arguments]


def run(results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(results, *arguments), capture_output=True, text=True, check=False, timeout=1200)


def read(results: Path) -> dict[str, dict[str, Any]]:
    """Return each method's record, generations and grades."""
    cells = {}
    for record in results.glob("*/record.json"):
        folder = record.parent
        lines = {
            name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
            for name in ("generations", "grades")
        }
        cells[folder.name.split("-")[0]] = {"record": json.loads(record.read_text()), "folder": folder, **lines}
    return cells


@dataclass
class Swept:
    """A sweep over three arms with the lossless gate, killed after the first arm's first output and started again."""

    results: Path
    before: list[dict[str, Any]]
    """What the killed run had made."""
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    results = tmp_path_factory.mktemp("results")
    arguments = ("hydra.mode=MULTIRUN", f"method={ARMS}", "lossless.check=on")
    before = stopped(results, signal.SIGKILL, *arguments)
    return Swept(results, before, run(results, *arguments))


@pytest.fixture(scope="module")
def cells(swept: Swept) -> dict[str, dict[str, Any]]:
    return read(swept.results)


def test_every_arm_has_its_record_and_the_table_is_printed(swept: Swept) -> None:
    done = swept.done
    assert done.returncode == 0, done.stderr
    assert set(read(swept.results)) == set(ARMS.split(","))
    assert "3 server starts" in done.stdout
    assert "speedup" in done.stdout
    assert all(f"[{number}/3]" in done.stdout for number in (1, 2, 3))


def test_what_the_killed_run_had_made_is_not_made_again(swept: Swept, cells: dict[str, dict[str, Any]]) -> None:
    made, first = len(swept.before), cells["vanilla"]
    assert 0 < made < LIMIT
    assert first["generations"][:made] == swept.before
    assert len(first["record"]["provenance"]["server_starts"]) == 2


def test_strict_is_token_identical_to_vanilla_in_float32(cells: dict[str, dict[str, Any]]) -> None:
    """Though vanilla's outputs are of two server starts."""
    outputs = {name: [line["output_ids"] for line in cells[name]["generations"]] for name in ("vanilla", "eagle3")}
    assert outputs["eagle3"] == outputs["vanilla"]
    assert (cells["eagle3"]["folder"] / "lossless.jsonl").read_text() == ""


def test_the_counts_are_the_engines_and_fit_together(cells: dict[str, dict[str, Any]]) -> None:
    for name, cell in cells.items():
        metrics, lines = cell["record"]["metrics"], cell["generations"]
        assert [line["index"] for line in lines] == list(range(LIMIT))
        assert {line["cached_tokens"] for line in lines} == {0}
        assert metrics["output_tokens"] == sum(len(line["output_ids"]) for line in lines)
        assert metrics["throughput_tok_s"] == pytest.approx(
            metrics["output_tokens"] / sum(line["latency_s"] for line in lines)
        )
        assert (metrics["tau"] is None) == (name == "vanilla")
        assert cell["record"]["provenance"]["config"]["method"]["name"] == name
        assert len(cell["grades"]) == LIMIT
    for line in cells["combined"]["generations"]:
        assert 1 + sum(step["committed"] for step in line["trace"]) == line["output_tokens"]
        assert len(line["trace"]) == line["verify_steps"]


def test_a_second_run_generates_nothing(swept: Swept, cells: dict[str, dict[str, Any]]) -> None:
    done = run(swept.results, "method=eagle3")
    assert "0 server starts" in done.stdout
    assert "(was done)" in done.stdout
    assert read(swept.results)["eagle3"]["generations"] == cells["eagle3"]["generations"]


def wait_for_lines(results: Path, count: int) -> int:
    """Wait until an unfinished cell has `count` outputs; return how many there are."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in results.glob("*/generations.jsonl"):
            lines = path.read_bytes().count(b"\n")
            if lines >= count:
                return lines
        time.sleep(0.05)
    raise AssertionError("no output appeared")


def servers_of(pid: int) -> list[psutil.Process]:
    """All processes with a server's mark whose session began under `pid`."""
    children = psutil.Process(pid).children(recursive=True)
    marks = {process.environ().get(MARK) for process in children} - {None}
    return [process for process in psutil.process_iter() if marked(process) in marks]


def marked(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:
        return None


def stopped(results: Path, number: signal.Signals, *arguments: str) -> list[dict[str, Any]]:
    """Stop a run after its first output; return what it had made, and see that none of its processes is left."""
    parent = subprocess.Popen(
        command(results, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    made = wait_for_lines(results, 1)
    family = servers_of(parent.pid)
    assert family
    os.kill(parent.pid, number)
    parent.wait(timeout=60)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    before = read_lines(results)
    assert len(before) >= made
    return before


@pytest.mark.slow  # the sweep above is killed; an interrupt ends the same way
def test_interrupted_in_the_middle_it_leaves_nothing_behind(tmp_path: Path) -> None:
    assert stopped(tmp_path, signal.SIGINT, "method=vanilla")


def read_lines(results: Path) -> list[dict[str, Any]]:
    (path,) = results.glob("*/generations.jsonl")
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def outputs_of(results: Path) -> dict[str, list[list[int]]]:
    return {name: [line["output_ids"] for line in cell["generations"]] for name, cell in read(results).items()}


@pytest.mark.slow  # with fake engines in test_cluster.py
def test_two_groups_at_once_by_submitit(tmp_path: Path, cells: dict[str, dict[str, Any]]) -> None:
    done = run(
        tmp_path,
        *("hydra.mode=MULTIRUN", "method=vanilla,eagle3", "limit=2"),
        *("launcher=local", "launcher.jobs=2"),
    )
    assert done.returncode == 0, done.stderr
    assert outputs_of(tmp_path) == {
        name: [line["output_ids"] for line in cells[name]["generations"][:2]] for name in ("vanilla", "eagle3")
    }
    origins = [cell["record"]["provenance"] for cell in read(tmp_path).values()]
    begins = [datetime.fromisoformat(origin["server_starts"][0]["started_at"]) for origin in origins]
    ends = [datetime.fromisoformat(origin["finished_at"]) for origin in origins]
    assert max(begins) < min(ends), "they ran one after the other"


@pytest.mark.slow  # the store's own test of two writers is quick
def test_two_writers_on_one_folder_make_every_output_once(tmp_path: Path, cells: dict[str, dict[str, Any]]) -> None:
    arguments = command(tmp_path, "hydra.mode=MULTIRUN", "method=vanilla,eagle3", "limit=2")
    writers = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(writer.communicate(timeout=800), writer.returncode)[1] for writer in writers] == [0, 0]
    assert outputs_of(tmp_path) == {
        name: [line["output_ids"] for line in cells[name]["generations"][:2]] for name in ("vanilla", "eagle3")
    }
