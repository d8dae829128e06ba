"""A misbehaving engine: what is made is kept, the sweep goes on, the reason is on disk. (The real server: test_end_to_end.)"""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators import sandbox
from evaluators.grading import GRADER_VERSION
from runners import group as group_module
from runners.cli import compose_config, report
from runners.display import Display
from runners.errors import UserError
from runners.group import GroupRunner, Outcome, Settings
from runners.provenance import describe_packages
from runners.resolve import Ready, Resolver
from runners.server import Server
from tests.runners.test_server import FakeSpec, info


@pytest.fixture
def ready(resolve: Callable[..., Ready]) -> Ready:
    """A vanilla cell of ten items."""
    return resolve("method=vanilla", "limit=10")


@pytest.fixture
def three(resolve: Callable[..., Ready]) -> list[Ready]:
    """Three cells of one server."""
    return [resolve("method=vanilla", f"limit={limit}") for limit in (1, 2, 3)]


def runner_with(
    modes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready, **more: Any
) -> GroupRunner:
    """A runner whose successive server starts behave as `modes` says."""
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
        fail_fast=more.get("fail_fast", False),
        grading={"workers": 1, "allow_unconfined": False},
        config={},
    )
    return GroupRunner(settings, Display(1, settings.results_dir))


@pytest.mark.parametrize(("mode", "how"), [("die-later", "ended with code 9"), ("killed-later", "ended by SIGKILL")])
def test_r055_a_server_that_dies_midway_is_replaced_and_the_fault_recorded(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, how: str
) -> None:
    runner = runner_with([mode, "ok"], tmp_path, monkeypatch, ready)
    (outcome,) = runner.run([ready])
    assert outcome.record is not None
    (fault,) = outcome.record["faults"]
    assert fault["kind"] == "ServerError"
    assert how in fault["detail"].partition(" while it answered")[0]
    lines = runner.folder(ready).generations()
    assert [line["index"] for line in lines] == list(range(10))
    assert {line["num_retractions"] for line in lines} == {1}
    first, second = (start["id"] for start in outcome.record["provenance"]["server_starts"])
    assert [line["server"] for line in lines] == [first] * 7 + [second] * 3  # what the first server made was kept


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


ANOTHER = {"cpu": "another", "cores": 2, "gpu": [], "driver": None, "torch": "2"}


def test_another_machines_cell_is_neither_reused_nor_mixed(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner_with(["ok"], tmp_path, monkeypatch, ready).run([ready])
    monkeypatch.setattr(group_module, "origin", lambda: ANOTHER)
    (outcome,) = runner_with([], tmp_path, monkeypatch, ready).run([ready])
    assert outcome.record is None
    assert "neither reused nor mixed" in str(outcome.failure)


@pytest.mark.parametrize("done", [False, True])
def test_a_cell_that_another_machine_began_while_ours_waited_is_not_mixed_either(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """All cells are looked at when the group starts; the second one's turn, and claim, come later."""
    runner = runner_with(["ok", "ok"], tmp_path, monkeypatch, three[0])
    theirs = runner.folder(three[1])
    measure_cell = runner.measure_cell

    def overtaken(server: Server, ready: Ready) -> Outcome:
        if ready is three[0]:
            with theirs.claim():
                theirs.write("origin.json", json.dumps(ANOTHER))
                theirs.append({"index": 0, "prompt_sha256": ready.prompts[0].sha256, "text": "theirs"})
                if done:
                    theirs.write("record.json", "{}")
        return measure_cell(server, ready)

    monkeypatch.setattr(runner, "measure_cell", overtaken)
    failures = [outcome.failure for outcome in runner.run(three)]
    assert failures[0] is failures[2] is None
    assert "neither reused nor mixed" in str(failures[1])
    assert [line["text"] for line in theirs.generations()] == ["theirs"]
    assert json.loads((theirs.path / "origin.json").read_text()) == ANOTHER


def test_a_fault_of_ours_is_not_noted_in_a_cell_that_another_machine_began(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_with(["exit"], tmp_path, monkeypatch, ready, attempts=1)
    theirs, start = runner.folder(ready), runner.start

    def overtaken(waiting: list[Ready]) -> Server:
        with theirs.claim():
            theirs.write("origin.json", json.dumps(ANOTHER))
        return start(waiting)

    monkeypatch.setattr(runner, "start", overtaken)
    (outcome,) = runner.run([ready])
    assert "index out of bounds" in str(outcome.failure)
    assert theirs.faults() == []


def test_a_done_cell_starts_nothing(ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner_with(["ok"], tmp_path, monkeypatch, ready).run([ready])
    before = runner_with([], tmp_path, monkeypatch, ready)
    (outcome,) = before.run([ready])
    assert outcome.record is not None
    assert before.server_starts == 0


def test_a_done_cell_is_graded_again_where_the_grading_asked_for_is_another(
    resolve: Callable[..., Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ready, legacy = (
        resolve("method=vanilla", f"benchmark.grading.paper_legacy={value}") for value in ("false", "true")
    )
    assert ready.id == legacy.id
    runner_with(["ok"], tmp_path, monkeypatch, ready).run([ready])
    # What never calls its tests passes them: under the legacy grader only.
    runner = runner_with([], tmp_path, monkeypatch, ready)
    path = runner.folder(ready).generations_path
    path.write_text(path.read_text().replace("The answer is 3.", "```python\\nx = 1\\n```"))
    (outcome,) = runner.run([legacy])
    assert outcome.record is not None
    assert outcome.record["metrics"]["accuracy_paper"] == 1.0
    assert "graded again" in capsys.readouterr().err
    runner.run([legacy])
    assert "graded again" not in capsys.readouterr().err


@pytest.mark.parametrize("left", ["an older version's", "nothing"])
def test_a_done_cell_of_another_version_of_the_grader_is_graded_again(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    runner = runner_with(["ok"], tmp_path, monkeypatch, ready)
    runner.run([ready])
    path = runner.folder(ready).path / "grades.jsonl"
    new = path.read_text()
    path.write_text(new.replace(f'"grader_version": "{GRADER_VERSION}"', '"grader_version": "0"'))
    if left == "nothing":
        path.unlink()
    (outcome,) = runner.run([ready])
    assert outcome.record is not None
    assert path.read_text() == new


def test_a_done_cell_that_cannot_be_graded_again_says_so(
    resolve: Callable[..., Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, hasty = resolve("method=vanilla"), resolve("method=vanilla", "benchmark.grading.wall_s=1")
    runner_with(["ok"], tmp_path, monkeypatch, ready).run([ready])

    def refuse(*_: object, **__: object) -> str:
        raise sandbox.SandboxError("nothing confines code here")

    monkeypatch.setattr(group_module, "regrade", refuse)
    (outcome,) = runner_with([], tmp_path, monkeypatch, ready).run([hasty])
    assert outcome.record is None
    assert "cannot be graded again: nothing confines code here" in str(outcome.failure)


def test_r038_r039_what_warms_the_server_up_is_never_measured(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_with(["ok"], tmp_path, monkeypatch, ready)
    runner.run([ready])
    # The fake engine numbers its answers: one proves that it serves, engine.warmup=2 are thrown away.
    assert [line["output_ids"][0] for line in runner.folder(ready).generations()] == list(range(4, 14))


def test_r062_r103_a_sweep_goes_on_after_failures_and_lists_them_all(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = runner_with(["exit", "exit", "ok"], tmp_path, monkeypatch, three[0], attempts=1)
    outcomes = runner.run(three)
    assert [outcome.record is None for outcome in outcomes] == [True, True, False]
    capsys.readouterr()
    assert report([], outcomes) == 1
    failures = [line for line in capsys.readouterr().err.splitlines() if line.startswith("FAILED")]
    assert len(failures) == 2
    assert "index out of bounds" in failures[0]
    assert failures[1].endswith("for the same reason")
    (fault,) = runner.folder(three[0]).faults()
    assert fault["detail"].splitlines()[-50:] == [
        *(f"loading {number}" for number in range(11, 60)),
        "RuntimeError: index out of bounds during graph capture",
    ]


def test_r106_fail_fast_stops_at_the_first_failure(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_with(["exit"], tmp_path, monkeypatch, three[0], attempts=1, fail_fast=True)
    outcomes = runner.run(three)
    assert [outcome.ready.id for outcome in outcomes if outcome.failure] == [three[0].id]
    assert (len(outcomes), runner.server_starts, report([], outcomes)) == (1, 1, 1)


def nothing_confines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "supported", lambda: False)
    sandbox.require.cache_clear()


def test_code_that_could_not_be_graded_is_not_generated(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_confines(monkeypatch)
    runner = runner_with([], tmp_path, monkeypatch, three[0])
    assert all("Nothing here confines model-written code" in str(outcome.failure) for outcome in runner.run(three))
    assert runner.server_starts == 0


def test_a_done_cell_of_code_is_read_where_nothing_confines(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_with(["ok"], tmp_path, monkeypatch, ready)
    runner.run([ready])
    nothing_confines(monkeypatch)
    (outcome,) = runner.run([ready])
    assert outcome.record is not None


def test_what_the_person_must_mend_fails_its_cell_alone(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded = iter([UserError("the grader broke"), None, None])

    def grade_cell(*_: object) -> list[dict[str, Any]]:
        if error := next(graded):
            raise error
        return real(*_)  # type: ignore[arg-type]

    real = group_module.grade_cell
    monkeypatch.setattr(group_module, "grade_cell", grade_cell)
    runner = runner_with(["ok", "ok"], tmp_path, monkeypatch, three[0])
    outcomes = runner.run(three)
    assert [outcome.failure for outcome in outcomes] == ["the grader broke", None, None]
    assert len(runner.folder(three[0]).generations()) == 1, "what was generated is kept"


def test_a_port_in_use_fails_the_groups_cells_and_not_the_sweep(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_with(["ok"] * 3, tmp_path, monkeypatch, three[0])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        runner.settings = replace(runner.settings, port=taken.getsockname()[1])
        outcomes = runner.run(three)
    assert [str(outcome.failure).partition("=")[0] for outcome in outcomes] == ["engine.port"] * 3


def test_r118_repeats_are_generated_and_stored_apart(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeats = [Resolver().resolve(three[0].cell.with_repeat(number)) for number in range(3)]
    runner = runner_with(["ok"], tmp_path, monkeypatch, repeats[0])
    runner.run(repeats)
    lines = [line["output_ids"] for repeat in repeats for line in runner.folder(repeat).generations()]
    assert lines == [[4, 2], [7, 2], [10, 2]], "three answers of the engine, each with its own warm-up before"


def test_the_record_carries_the_cells_own_config_and_not_the_last_jobs(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = compose_config(["engine.device=cpu", "+extra=vanilla_sglang_defaults", "data.demo=elsewhere", "attempts=3"])
    runner = runner_with(["ok"], tmp_path, monkeypatch, three[0])
    runner.settings = replace(runner.settings, config=last)
    (outcome,) = runner.run(three[:1])
    assert outcome.record is not None
    config = outcome.record["provenance"]["config"]
    assert last["engine"]["overlap_schedule"] != config["engine"]["overlap_schedule"]
    assert three[0].cell.engine.items() <= config["engine"].items()
    assert config["engine"]["timeouts"] == runner.settings.timeouts
    assert config["attempts"] == 3
    assert "data" not in config, "resolved into the benchmark's path"


def test_r018_the_record_says_what_transformers_made_of_the_configs(
    three: list[Ready], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = '{"model_type": "llama", "rope_parameters": {"rope_theta": 10000, "rope_type": "default"}}'
    (three[0].target.path / "config.json").write_text(config)
    (outcome,) = runner_with(["ok"], tmp_path, monkeypatch, three[0]).run(three[:1])
    assert outcome.record is not None
    assert outcome.record["provenance"]["models"]["target"]["rope_theta"] == 10000
    assert outcome.record["provenance"]["packages"]["transformers"] == describe_packages()["transformers"]
