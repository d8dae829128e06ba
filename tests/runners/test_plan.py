import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from runners.cell import Cell
from runners.cli import plain_config, resolve_engine
from runners.plan import make_plan

ROOT = Path(__file__).parent.parent.parent
CellOf = Callable[..., Cell]
VANILLA = {"name": "vanilla", "algorithm": None, "tree": None, "accept": None}
EAGLE3 = {
    "name": "eagle3",
    "algorithm": "EAGLE3",
    "tree": {"policy": "static", "shape": [3, 1, 4]},
    "accept": {"rule": "strict"},
}
REFERENCES = {"vanilla": VANILLA, "eagle3": EAGLE3}
PAPER_MODELS = ("llama31_8b", "qwen3_8b", "deepseek_r1_8b")
PAPER_BENCHMARKS = ("gsm8k", "math500", "humaneval")


def test_a_cell_asked_for_twice_is_run_once_and_said(cell_of: CellOf) -> None:
    plan = make_plan([cell_of("kappa=0.1"), cell_of("kappa=1e-1"), cell_of("kappa=0.2")], None, 1, False)
    assert len(plan.cells) == 2
    assert any("2 times" in note for note in plan.notes)


def test_one_server_serves_what_a_request_can_carry(cell_of: CellOf) -> None:
    cells = [
        cell_of("method=combined", "kappa=0.1"),
        cell_of("method=combined", "kappa=0.3", "d=0.2"),
        cell_of("method=dynamic", "benchmark=humaneval"),
        cell_of("method=dynamic", "limit=3"),
        cell_of("method=lossy"),
        cell_of("method=fly"),
    ]
    plan = make_plan(cells, None, 1, False)
    assert [len(group.cells) for group in plan.groups] == [4, 2]
    assert len(make_plan(cells, None, 1, True).groups) == len(cells)


@pytest.mark.parametrize("change", ["engine.dtype=bfloat16", "seed=3", "method.tree.alpha=0.5", "model.draft.path=x"])
def test_what_a_request_cannot_carry_needs_its_own_server(cell_of: CellOf, change: str) -> None:
    plan = make_plan([cell_of("method=combined"), cell_of("method=combined", change)], None, 1, False)
    assert len(plan.groups) == 2


def test_references_are_added_once_and_only_where_a_ratio_needs_them(cell_of: CellOf) -> None:
    lossy = [cell_of("method=combined", f"kappa={kappa}") for kappa in (0.1, 0.2)]
    plan = make_plan(lossy, REFERENCES, 1, False)
    assert [cell.method["name"] for cell in plan.cells] == ["vanilla", "eagle3", "combined", "combined"]
    assert len(plan.notes) == 2
    strict = make_plan([cell_of("method=dynamic")], REFERENCES, 1, False)
    assert [cell.method["name"] for cell in strict.cells] == ["vanilla", "dynamic"]
    asked = make_plan([cell_of("method=vanilla"), cell_of("method=dynamic")], REFERENCES, 1, False)
    assert not asked.notes
    assert len(make_plan(lossy, None, 1, False).cells) == 2


def test_repeats_rotate_so_that_drift_favours_no_arm(cell_of: CellOf) -> None:
    cells = [cell_of("method=vanilla"), cell_of("method=eagle3"), cell_of("method=lossy")]
    plan = make_plan(cells, None, 3, False)
    order = [cell.method["name"] for cell in plan.cells]
    assert [order[i : i + 3] for i in (0, 3, 6)] == [
        ["vanilla", "eagle3", "lossy"],
        ["eagle3", "lossy", "vanilla"],
        ["lossy", "vanilla", "eagle3"],
    ]
    assert len({cell.key for cell in plan.cells}) == 9


@pytest.mark.parametrize("methods", [("vanilla", "eagle3"), ("vanilla", "eagle3", "lossy")])
def test_r042_rotated_rounds_cancel_a_linear_drift_that_blocks_take_for_a_gain(
    cell_of: CellOf, methods: tuple[str, ...]
) -> None:
    """Equal arms on a machine that slows down by a tenth over the run; two arms run as ABBA."""
    n = len(methods)
    plan = make_plan([cell_of(f"method={method}") for method in methods], None, n, False)
    rotated = [cell.method["name"] for cell in plan.cells]
    blocks = [method for method in methods for _ in range(n)]
    assert n > 2 or rotated == ["vanilla", "eagle3", "eagle3", "vanilla"]

    def gain(order: list[str], method: str) -> float:
        seconds = dict.fromkeys(methods, 0.0)
        for place, name in enumerate(order):
            seconds[name] += 1 + 0.1 * place / (len(order) - 1)
        return seconds[method] / seconds["vanilla"] - 1

    for method in methods[1:]:
        assert gain(rotated, method) == pytest.approx(0, abs=1e-9)
        assert gain(blocks, method) > 0.03


def test_r015_a_shape_deeper_than_what_it_verifies_is_said(cell_of: CellOf) -> None:
    def notes(shape: str) -> tuple[str, ...]:
        return make_plan([cell_of("method=static", f"method.tree.shape={shape}")], None, 1, False).notes

    (note,) = notes("[5,4,4]")
    assert "(5,4,4) drafts 5 deep" in note
    assert "num_draft_tokens - 1 = 3 drafts can be verified: tau is at most 4" in note
    assert notes("[3,4,4]") == notes("[7,1,8]") == ()


def jobs_of(name: str) -> list[list[str]]:
    """Expand conf/sweep/NAME.yaml with Hydra's own sweeper."""
    config = compose("config", [f"+sweep={name}"], return_hydra_config=True)
    params = OmegaConf.to_container(config.hydra.sweeper.params)
    assert isinstance(params, dict)
    parser = OverridesParser.create(ConfigLoaderImpl(create_config_search_path("pkg://conf")))
    overrides = parser.parse_overrides([f"{key}={value}" for key, value in params.items()])
    batches: list[list[str]] = BasicSweeper.split_arguments(overrides, max_batch_size=None)[0]
    return [[f"+sweep={name}", *batch] for batch in batches]


def cells_of(jobs: list[list[str]]) -> list[Cell]:
    cells = []
    for job in jobs:
        config = plain_config(compose("config", ["engine.device=cpu", *job]))
        cells.append(Cell.from_config({**config, "engine": resolve_engine(config["engine"])}))
    return cells


@pytest.fixture(scope="module")
def hydra() -> Iterator[None]:
    with initialize_config_module("conf", version_base="1.3"):
        yield


@pytest.mark.usefixtures("hydra")
@pytest.mark.parametrize(
    ("name", "count"),
    [("table1", 63), ("table2", 45), ("table3", 45), ("table4", 81), ("table5", 9), ("all", 135), ("extras", 13 * 9)],
)
def test_a_table_asks_for_its_cells(name: str, count: int) -> None:
    jobs = jobs_of(name)
    assert len(jobs) == count
    one_pair = [job for job in jobs if {"model=llama31_8b", "benchmark=math500"} <= set(job)]
    assert len({cell.key for cell in cells_of(one_pair)}) == count // 9


@pytest.mark.usefixtures("hydra")
def test_all_tables_share_135_cells_and_15_servers() -> None:
    everything = cells_of(jobs_of("all"))
    keys = {cell.key for cell in everything}
    assert len(keys) == 135
    assert make_plan(everything, None, 1, False).summary() == "135 cells, 15 server starts"
    for name in ("table1", "table3", "table4"):
        deepseek = [job for job in jobs_of(name) if {"model=deepseek_r1_8b", "benchmark=math500"} <= set(job)]
        assert {cell.key for cell in cells_of(deepseek)} <= keys


@pytest.mark.usefixtures("hydra")
def test_make_asks_for_one_protocol_on_all_benchmarks() -> None:
    """The verdicts beside the paper's figures need `paper`."""
    told = subprocess.run(
        ["make", "-n", "reproduce-table5", "PROTOCOL=paper"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    overrides = [word for word in told.stdout.split() if word.startswith("benchmark")]
    cells = cells_of([[*job, *overrides] for job in jobs_of("table5")])
    assert {(cell.benchmark["name"], cell.benchmark["protocol"]) for cell in cells} == {
        (name, "paper") for name in PAPER_BENCHMARKS
    }
