"""Who may import whom (docs/data.md draws the line they stand on)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"adaptivespec", "runners", "evaluators", "analysis", "conf"}


def imported(path: Path, everywhere: bool) -> Iterator[str]:
    """Top-level names of modules imported by a file: at module level, or `everywhere` in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def files(*folders: str, without: tuple[str, ...] = ()) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if not any(part in path.parts for part in without)]


def names(path: Path, everywhere: bool = True) -> set[str]:
    return {name.split(".")[0] for name in imported(path, everywhere)}


METHOD = files("adaptivespec", without=("sglang_plugin", "sglang_cpu", "demo"))


@pytest.mark.parametrize("path", METHOD, ids=str)
def test_the_method_needs_torch_at_most(path: Path) -> None:
    assert not names(path) & {"sglang", "hydra", "omegaconf", "transformers", "pandas", *OURS - {"adaptivespec"}}


@pytest.mark.parametrize("path", files("adaptivespec"), ids=str)
def test_what_is_served_needs_no_harness(path: Path) -> None:
    assert not names(path) & {"hydra", "omegaconf", "pandas", "wandb", "runners", "analysis", "conf"}


@pytest.mark.parametrize("path", files("evaluators"), ids=str)
def test_grading_needs_no_engine(path: Path) -> None:
    assert not names(path) & {"sglang", "torch", "runners", "analysis"}


@pytest.mark.parametrize("path", files("runners"), ids=str)
def test_runners_reach_the_plugin_by_entry_point_and_leave_analysis_alone(path: Path) -> None:
    assert not names(path) & {"sglang", "analysis"}
    assert not [name for name in imported(path, True) if name.startswith("adaptivespec.sglang_plugin")]


@pytest.mark.parametrize("path", files("analysis"), ids=str)
def test_analysis_reads_records_only(path: Path) -> None:
    assert not names(path) & {"sglang", "torch", "runners", "evaluators", "hydra"}


def test_there_are_files_to_check() -> None:
    assert len(METHOD) > 4
