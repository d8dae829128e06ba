"""A misbehaving engine: what is made is kept, the sweep goes on, the reason is on disk. (The real server: test_end_to_end.)"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners import group as group_module
from runners.cell import Cell
from runners.display import Display
from runners.group import GroupRunner, Settings
from runners.resolve import Ready, Resolver
from tests.runners.test_server import FakeSpec, info


@pytest.fixture
def ready(cell_of: Callable[..., Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ready:
    """A vanilla cell of six items whose tokenizer and weights are stand-ins."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text("{}")
    (target / "model.safetensors").touch()
    monkeypatch.setattr("runners.resolve.load_tokenizer", lambda folder: Tokenizer())
    return Resolver().resolve(
        cell_of("method=vanilla", "benchmark=humaneval", "limit=6", f"model.target.path={target}")
    )


class Tokenizer:
    chat_template = "x"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return messages[0]["content"]

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [1, 2, 3]}


def runner_with(
    modes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready, **more: Any
) -> GroupRunner:
    """A runner whose successive server starts behave as `modes` says."""
    import json

    remaining = iter(modes)
    told = json.dumps(info(model_path=str(ready.target.path), dtype="float32"))

    def spec(waiting: list[Ready]) -> FakeSpec:
        engine = ready.cell.engine
        return FakeSpec(ready.target.path, None, None, None, None, engine, 0, mode=next(remaining), told=told)

    monkeypatch.setattr(group_module, "server_spec", spec)
    settings = Settings(
        results_dir=tmp_path / "runs",
        timeouts={"start_s": 20, "request_s": 1, "stop_s": 5},
        port=None,
        attempts=more.get("attempts", 2),
        fail_fast=False,
        grading={"workers": 1, "allow_unconfined": False},
        config={},
    )
    return GroupRunner(settings, Display(1, settings.results_dir))


def test_a_server_that_dies_midway_is_replaced_and_the_fault_recorded(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_with(["die-later", "ok"], tmp_path, monkeypatch, ready)
    (outcome,) = runner.run([ready])
    assert outcome.record is not None
    assert len(outcome.record["faults"]) == 1
    lines = runner.folder(ready).generations()
    assert sorted(line["index"] for line in lines) == list(range(6))
    assert len({line["server"] for line in lines}) == 2  # what the first server made was kept
    assert len(outcome.record["provenance"]["server_starts"]) == 2


@pytest.mark.parametrize(("mode", "reason"), [("exit", "index out of bounds"), ("hang-later", "timed out")])
def test_a_cell_fails_after_its_attempts_with_the_reason(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, reason: str
) -> None:
    runner = runner_with([mode, mode], tmp_path, monkeypatch, ready)
    (outcome,) = runner.run([ready])
    assert outcome.record is None
    assert reason in str(outcome.failure)
    assert runner.server_starts == 2
    assert len(runner.folder(ready).faults()) == 2
    assert runner.folder(ready).status() != "done"


def test_another_machines_cell_is_neither_reused_nor_mixed(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner_with(["ok"], tmp_path, monkeypatch, ready).run([ready])
    monkeypatch.setattr(
        group_module, "origin", lambda: {"cpu": "another", "cores": 2, "gpu": [], "driver": None, "torch": "2"}
    )
    (outcome,) = runner_with([], tmp_path, monkeypatch, ready).run([ready])
    assert outcome.record is None
    assert "neither reused nor mixed" in str(outcome.failure)


def test_a_done_cell_starts_nothing(ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner_with(["ok"], tmp_path, monkeypatch, ready).run([ready])
    before = runner_with([], tmp_path, monkeypatch, ready)
    (outcome,) = before.run([ready])
    assert outcome.record is not None
    assert before.server_starts == 0
