"""The command line as a person meets it; nothing here starts a server."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.cell import Cell
from runners.cli import clean_run, compose_config
from runners.errors import UserError
from runners.preflight import hours, n_items, too_large

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "run.py"), "engine.device=cpu", *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment}, check=False, timeout=300
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["method=eagel3"], ["eagel3", "eagle3"]),
        (["kapa=0.1"], ["kapa"]),
        (["limit=-1"], ["limit=-1"]),
        (["method=eagle3", "model.draft=null"], ["model.draft"]),
        (["method=static", "method.tree.shape=[3,1,5]"], ["3, 1, 5"]),
        (["method=vanilla", "kappa=0.1"], ["kappa=0.1", "vanilla"]),
        (["method=eagle3", "model.draft.path=nowhere", "model.target.path=nowhere"], ["nowhere", "model.target.path"]),
        (["benchmark.protocol=other"], ["other", "default"]),
        (["engine.device=tpu"], ["engine.device=tpu"]),
        (["references=maybe"], ["references=maybe"]),
        (["lossless.check=maybe", "dry_run=true"], ["lossless.check=maybe", "on or off"]),
        (["tracking.mode=ofline", "dry_run=true"], ["tracking.mode=ofline", "off, offline or online"]),
        (["model.max_new_tokens=0"], ["model.max_new_tokens=0"]),
        (["engine.concurrency=0"], ["engine.concurrency=0"]),
    ],
)
def test_bad_input_ends_with_one_clear_message(arguments: list[str], told: list[str], tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    for words in told:
        assert words in done.stderr


SWITCHES = ("dry_run", "fail_fast", "fresh_servers", "grading.allow_unconfined")


@pytest.mark.parametrize(
    ("value", "meant"), [("off", False), ("no", False), ("false", False), ("on", True), ("yes", True)]
)
def test_a_runs_switch_that_is_off_in_any_word_is_off(value: str, meant: bool) -> None:
    config = clean_run(compose_config(["engine.device=cpu", *(f"{name}={value}" for name in SWITCHES)]))
    assert [config["dry_run"], config["fail_fast"], config["fresh_servers"]] == [meant] * 3
    assert config["grading"]["allow_unconfined"] is meant


def test_a_runs_switch_of_another_word_is_refused() -> None:
    config = compose_config(["engine.device=cpu", "dry_run=maybe"])
    with pytest.raises(UserError, match="dry_run='maybe': expected true or false"):
        clean_run(config)


@pytest.mark.parametrize("name", ["repeats", "attempts", "grading.workers"])
def test_a_runs_counts_are_checked_before_anything_starts(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}=0: expected a whole number above 0"):
        clean_run(compose_config(["engine.device=cpu", f"{name}=0"]))


def test_outside_the_virtual_environment_the_remedy_is_told() -> None:
    bare = [sys.executable, "-S", str(ROOT / "run.py"), "--help"]  # -S: without site-packages, as the system's Python
    done = subprocess.run(bare, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for words in ("No module named", "make setup", ". .venv/bin/activate", ".venv/bin/python run.py"):
        assert words in done.stderr


def test_a_draft_folder_without_weights_is_named(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    done = run(
        "method=eagle3",
        f"model.target.path={ROOT / 'adaptivespec/demo/drafter'}",
        f"model.draft.path={draft}",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "holds no *.safetensors" in done.stderr


def test_no_network_and_no_cache_says_what_to_do(tmp_path: Path) -> None:
    environment = {
        "ADAPTIVESPEC_CACHE": str(tmp_path / "empty"),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_NO_INDEX": "1",
    }
    done = run("method=vanilla", cwd=tmp_path, PIP_FIND_LINKS="", PIP_CONFIG_FILE=os.devnull, **environment)
    assert done.returncode == 1
    assert "model.target.path=FOLDER" in done.stderr
    assert not list((tmp_path / "empty").glob("*/model.safetensors"))


@pytest.mark.parametrize("network", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_the_hub_out_of_reach_says_what_to_do(tmp_path: Path, network: dict[str, str]) -> None:
    small = "model.parameters=1"  # this machine may be too small for the model, which is another error
    done = run("method=vanilla", "model=llama31_8b", small, cwd=tmp_path, HF_HOME=str(tmp_path), **network)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "meta-llama/Llama-3.1-8B-Instruct" in done.stderr
    assert "model.target.path=FOLDER" in done.stderr


def test_the_papers_plan_without_a_gpu_names_hours_and_the_small_plan(tmp_path: Path) -> None:
    done = run("+sweep=table1", "model.parameters=1e13", cwd=tmp_path)
    assert done.returncode == 1
    for words in (
        "model=llama31_8b",
        "no CUDA device",
        "63 cells",
        "hours",
        "make reproduce-table1 MODEL=smollm2_135m LIMIT=8",
    ):
        assert words in done.stderr


@pytest.mark.parametrize(
    "unknown",
    [
        ("~model.parameters", "~model.typical", "~model.max_new_tokens"),
        ("model.parameters=null", "model.typical=null"),
        ("model.typical.tok_s=null",),
        ("benchmark.source.count=null", "benchmark.source.sha256=null", "limit=null"),
    ],
)
def test_what_is_not_known_of_a_plan_is_not_guessed(unknown: tuple[str, ...], cell_of: Callable[..., Cell]) -> None:
    cell = cell_of("method=vanilla", *unknown)
    assert hours([cell]) is None
    assert too_large(cell) is None


def test_a_limit_tells_how_many_problems_at_most(cell_of: Callable[..., Cell]) -> None:
    counts = [cell_of("limit=7", f"benchmark.source.count={count}") for count in ("null", 5, 100)]
    assert [n_items(cell) for cell in counts] == [7, 5, 7]


def test_a_model_of_ones_own_needs_no_guesses(tmp_path: Path) -> None:
    done = run(
        "method=vanilla", "dry_run=true", "~model.parameters", "~model.typical", "~model.max_new_tokens", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "1 cell, 1 server start" in done.stdout
    assert "cannot be guessed" in done.stdout


def test_a_cell_out_of_reach_fails_alone_with_its_own_reason(tmp_path: Path) -> None:
    """The sweep goes on to the next cell, which here lacks something else."""
    done = run(
        *("hydra.mode=MULTIRUN", "method=vanilla", "benchmark=gsm8k,humaneval", "limit=1", "references=off"),
        *(f"model.target.path={ROOT / 'adaptivespec/demo/drafter'}", "data.gsm8k=nowhere.jsonl"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "FAILED vanilla · smollm2_135m · gsm8k: benchmark.path=nowhere.jsonl cannot be read" in done.stderr
    assert "FAILED vanilla · smollm2_135m · humaneval: model.target" in done.stderr
    assert "has no tokenizer" in done.stderr


def test_all_failures_of_a_sweep_are_listed(tmp_path: Path) -> None:
    done = run("hydra.mode=MULTIRUN", "method=lossy", "kappa=0,-1", cwd=tmp_path)
    assert done.returncode == 1
    assert "kappa=0" in done.stderr
    assert "kappa=-1" in done.stderr


@pytest.mark.parametrize(
    "swept", ["repeats=1,3", "results_dir=a,b", "grading.workers=1,2", "engine.timeouts.start_s=5,6"]
)
def test_a_sweep_over_what_all_cells_share_is_refused(tmp_path: Path, swept: str) -> None:
    """One value, the last job's, would silently have served all."""
    done = run("hydra.mode=MULTIRUN", "method=vanilla", "dry_run=true", swept, cwd=tmp_path)
    assert done.returncode == 1
    assert f"Error: {swept}: all cells of a run share one value" in done.stderr


@pytest.mark.parametrize(("fail_fast", "planned"), [("true", False), ("false", True)])
def test_r106_with_fail_fast_a_bad_job_stops_the_sweep_before_it_starts(
    tmp_path: Path, fail_fast: str, planned: bool
) -> None:
    sweep = ("hydra.mode=MULTIRUN", "method=lossy", "kappa=0,0.2", "dry_run=true", f"fail_fast={fail_fast}")
    done = run(*sweep, "model=llama31_8b", cwd=tmp_path, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "kappa=0" in done.stderr
    assert ("server starts" in done.stdout) == planned


def test_the_papers_plan_can_be_shown_anywhere(tmp_path: Path) -> None:
    done = run("+sweep=table5", "dry_run=true", cwd=tmp_path, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert (
        "9 cells, 3 server starts" in done.stdout.replace("18 cells, 6", "")
        or "18 cells, 6 server starts" in done.stdout
    )
    assert "unknown" in done.stdout
