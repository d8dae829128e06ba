"""Offline runs are complete on disk, and logging twice does not duplicate."""

import json
import re
import subprocess
import sys
from unittest.mock import MagicMock

import pytest

from analysis import dashboard, tracking
from analysis.arms import Study
from tests.analysis.synthetic import Item, Spec, write_cell


def names(tmp_path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "wandb").glob("offline-run-*"))


def offline(tmp_path) -> str:
    """In a process of its own, as the runner calls it."""
    command = [
        sys.executable,
        "-m",
        "analysis.tracking",
        "--results",
        str(tmp_path),
        "--mode",
        "offline",
        "--project",
        "p",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_offline_runs_hold_everything_and_are_written_once(tmp_path) -> None:
    items = [Item(latency_s=1 + place / 10, promotions=2) for place in range(8)]
    for method in ("vanilla", "eagle3"):
        write_cell(tmp_path, Spec(method, items))
    cell_id = write_cell(tmp_path, Spec("combined", items, trace=True))
    assert "3 cells logged, 0 unchanged" in offline(tmp_path)
    assert "0 cells logged, 3 unchanged" in offline(tmp_path)
    (folder,) = [name for name in names(tmp_path) if name.endswith(cell_id)]
    assert len(names(tmp_path)) == 3
    run = tmp_path / "wandb" / folder
    data = next(run.glob("*.wandb")).read_bytes()
    for expected in (
        b"throughput_tok_s",
        b"speedup_low",
        b"recovery",
        b"hostname_sha256",
        b"kappa",
        b"smollm2_135m-default",
    ):
        assert expected in data, expected
    media = {re.sub(r"_\d+_[0-9a-f]+", "", path.name) for path in run.rglob("media/**/*.json")}
    assert {"items.table.json", "dcs.plotly.json", "depth.plotly.json", "shapes.plotly.json"} <= media
    table = json.loads(next(run.rglob("items*.table.json")).read_text())
    assert [row[0] for row in table["data"]] == [f"demo/{place}" for place in range(8)]


def test_a_cell_graded_again_is_logged_again(tmp_path) -> None:
    cell_id = write_cell(tmp_path, Spec("vanilla"))
    before = fingerprints(tmp_path)
    grades = tmp_path / cell_id / "grades.jsonl"
    grades.write_text(grades.read_text().replace('"grader_version": "1"', '"grader_version": "2"'))
    assert fingerprints(tmp_path)[cell_id] != before[cell_id]


def fingerprints(folder) -> dict[str, str]:
    study = Study.load(folder)
    return {cell.record.cell_id: tracking.fingerprint(study, arm, cell) for arm in study.arms for cell in arm.cells}


def test_ratios_of_a_reference_that_came_later_are_logged(tmp_path, monkeypatch) -> None:
    wandb = MagicMock()
    monkeypatch.setattr(tracking, "import_wandb", lambda: wandb)
    lossy = write_cell(tmp_path, Spec("lossy"))
    assert tracking.track(tmp_path, "offline", "p") == (1, 0)
    for method in ("vanilla", "eagle3"):
        write_cell(tmp_path, Spec(method))
    wandb.reset_mock()
    assert tracking.track(tmp_path, "offline", "p") == (3, 0)
    runs = [call.kwargs["id"] for call in wandb.init.call_args_list]
    summaries = [call.args[0] for call in wandb.init.return_value.summary.update.call_args_list]
    assert {"speedup", "recovery"} <= set(dict(zip(runs, summaries, strict=True))[lossy])
    assert tracking.track(tmp_path, "offline", "p") == (0, 3)


@pytest.mark.parametrize(
    ("module", "load"), [("wandb", tracking.import_wandb), ("wandb_workspaces", dashboard.import_workspaces)]
)
def test_an_absent_library_is_one_line_with_the_remedy(monkeypatch, module: str, load) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match="pip install"):
        load()


def test_the_dashboard_wants_an_entity(monkeypatch, capsys) -> None:
    monkeypatch.delenv("WANDB_ENTITY", raising=False)
    assert dashboard.main([]) == 1
    assert "--entity" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_workspace_shows_the_metrics_that_are_logged() -> None:
    pytest.importorskip("wandb_workspaces")
    workspace = dashboard.build(*dashboard.import_workspaces(), "someone", "adaptivespec")
    bars = {
        metric
        for section in workspace.sections
        for panel in section.panels
        for metric in getattr(panel, "metrics", None) or []
    }
    assert {"speedup", "tau", "recovery"} <= {str(getattr(metric, "name", metric)) for metric in bars}
