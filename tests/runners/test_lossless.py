"""The lossless gate decides how a run ends, and a server that fails in it costs nothing but its own answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runners import cli
from runners.display import analyse
from runners.group import GroupRunner, Outcome
from runners.lossless import check
from runners.plan import make_plan
from runners.resolve import Ready
from tests.runners.test_faults import runner_with


@pytest.fixture
def diverging(resolve: Callable[..., Ready]) -> Callable[[GroupRunner], list[Outcome]]:
    """A vanilla and a strict arm whose outputs part at the second token."""

    def write(runner: GroupRunner) -> list[Outcome]:
        outcomes = []
        for method, token in (("vanilla", 5), ("eagle3", 6)):
            ready = resolve(f"method={method}")
            with runner.folder(ready).claim() as folder:
                folder.append({"item": "HumanEval/0", "index": 0, "output_ids": [4, token, 2]})
            outcomes.append(Outcome(ready.cell, ready, {"cell_id": ready.id}))
        return outcomes

    return write


@pytest.mark.parametrize(("mode", "reason"), [("exit", "index out of bounds"), ("hang-later", "timed out")])
def test_a_server_that_fails_while_gaps_are_measured_is_an_error_and_no_traceback(
    diverging: Callable[[GroupRunner], list[Outcome]],
    resolve: Callable[..., Ready],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    reason: str,
) -> None:
    runner = runner_with([mode], tmp_path, monkeypatch, resolve("method=vanilla"))
    outcomes = diverging(runner)
    compared, (failure,) = check(outcomes, runner)
    assert compared == [resolve("method=eagle3").id], "it is judged by what is known"
    assert "eagle3 · smollm2_135m · humaneval" in failure
    assert reason in failure


@pytest.mark.parametrize("judged", [0, 1])
def test_a_run_ends_as_the_gate_does_and_reports_the_rest(
    diverging: Callable[[GroupRunner], list[Outcome]],
    resolve: Callable[..., Ready],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    judged: int,
) -> None:
    runner = runner_with([], tmp_path, monkeypatch, resolve("method=vanilla"))
    outcomes = diverging(runner)
    asked = cli.Asked()
    asked.config = cli.compose_config(["engine.device=cpu", "lossless.check=on", f"results_dir={tmp_path / 'runs'}"])
    plan = make_plan([outcome.cell for outcome in outcomes], None, 1, False)
    programs: list[str] = []

    def program(module: str, *arguments: str) -> int:
        programs.append(module)
        return judged if module == "lossless" else 0

    monkeypatch.setattr(cli, "plan_cells", lambda *_: plan)
    monkeypatch.setattr(cli, "run_plan", lambda *_: outcomes)
    monkeypatch.setattr(cli, "check", lambda *_: (["an id"], []))
    monkeypatch.setattr(cli, "analyse", program)
    monkeypatch.setattr(cli, "track", lambda *_: programs.append("track"))
    assert cli.run(asked) == judged
    assert programs == ["tables", "lossless", "track"]
    assert ("outputs are not vanilla's" in capsys.readouterr().err) == bool(judged)


def test_a_program_of_the_analysis_hands_on_its_exit_status(tmp_path: Path) -> None:
    assert analyse("lossless", "--results", str(tmp_path / "none")) == 1
