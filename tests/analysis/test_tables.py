"""Tables from records whose right answers are worked out by hand here."""

import csv
import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from analysis import tables
from analysis.arms import Study
from analysis.blocks import blocks
from analysis.records import id_digits
from tests.analysis.synthetic import A100, MACHINE, Cell, Item, Spec, write_cell

N = 8
TOKENS = 121
# Per method: seconds an item, verify steps an item, items right.
ARMS = {
    "vanilla": (6.0, 0, 8), "eagle3": (3.0, 48, 5), "talon": (2.4, 40, 5), "dynamic": (2.0, 30, 5),
    "fly": (2.5, 40, 4), "lossy": (1.5, 24, 4), "combined": (1.2, 20, 6),
}  # fmt: skip
MODELS, BENCHMARKS = ("llama31_8b", "qwen3_8b", "deepseek_r1_8b"), ("gsm8k", "math500", "humaneval")
KAPPA = {
    "combined": {"llama31_8b": (0.2, 0.3, 0.2), "deepseek_r1_8b": (0.2, 0.05, 0.3), "qwen3_8b": (0.1, 0.2, 0.3)},
    "lossy": {"llama31_8b": (0.2, 0.3, 0.2), "deepseek_r1_8b": (0.2, 0.1, 0.2), "qwen3_8b": (0.1, 0.2, 0.3)},
}


def arm(method: str, **changes) -> Spec:
    seconds, steps, right = ARMS[method]
    items = [Item(tokens=TOKENS, latency_s=seconds, steps=steps, correct=place < right) for place in range(N)]
    defaults = {"device": "cuda", "machine": A100, "protocol": "paper"}
    return Spec(method, items, **{**defaults, **changes})


@pytest.fixture(scope="module")
def gpu_results(tmp_path_factory) -> Path:
    """All 135 cells on an A100; every benchmark alike, so that the averages are the cells."""
    folder = tmp_path_factory.mktemp("runs")
    for model in MODELS:
        for place, benchmark in enumerate(BENCHMARKS):
            at = {"model": model, "benchmark": benchmark}
            for method in ("vanilla", "eagle3", "talon", "fly"):
                write_cell(folder, arm(method, **at))
            for d in (0.2, 0.3, 0.4, 0.5):
                write_cell(folder, arm("dynamic", d=d, **at))
            for method, kappas in (("lossy", (0.1, 0.2, 0.3)), ("combined", (0.05, 0.1, 0.2, 0.3))):
                for kappa in kappas:
                    spec = arm(method, kappa=kappa, **at)
                    chosen = kappa == KAPPA[method][model][place]
                    # Only the paper's threshold has the figures above: a wrong pick would show.
                    slow = [item if chosen else Item(TOKENS, 6.0, 60, correct=False) for item in spec.items]
                    write_cell(folder, spec.with_(items=slow))
    assert len(list(folder.iterdir())) == 135
    return folder


def printed(capsys, *argv: str) -> str:
    assert tables.main(list(argv)) == 0
    return capsys.readouterr().out


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:1] + lines[2:]]


def point(text: str) -> str:
    """The figure alone."""
    return text.split(" ")[0]


def test_table1_is_exact(gpu_results, capsys) -> None:
    table = rows(printed(capsys, "table1", "--results", str(gpu_results), "--format", "md"))
    assert table[0][:5] == ["Model", "Method", "GSM8K Speedup", "GSM8K tau", "GSM8K Rec. %"]
    expected = {
        "EAGLE-3": ("2.00", "2.52", "-"),
        "TALON*": ("2.50", "3.02", "-"),
        "AdaptiveSpec (Dynamic-only)": ("3.00", "4.03", "-"),
        "FLy*": ("2.40", "3.02", "80"),
        "AdaptiveSpec (Lossy-only)": ("4.00", "5.04", "80"),
        "AdaptiveSpec (Combined)": ("5.00", "6.05", "120"),
    }
    main = [row for row in table[1:] if "paper's grader" not in row[1]]
    assert [row[1] for row in main] == list(expected) * 3
    assert [row[0] for row in main if row[0]] == ["Llama-3.1-8B", "Qwen3-8B", "DeepSeek-R1-8B"]
    for row in main:
        assert tuple(point(cell) for cell in row[2:]) == expected[row[1]] * 3
    graders = [row for row in table[1:] if "paper's grader" in row[1]]
    assert [[point(cell) for cell in row[2:] if cell] for row in graders] == [["80"] * 3, ["80"] * 3, ["120"] * 3] * 3


def test_table2_is_exact(gpu_results, capsys) -> None:
    table = rows(printed(capsys, "table2", "--results", str(gpu_results), "--format", "md"))
    strict, lossy = ("2.00", "2.52", "100", "3.00", "4.03", "100"), ("4.00", "5.04", "80", "5.00", "6.05", "120")
    assert [(row[1], tuple(point(cell) for cell in row[2:])) for row in table[1:]] == [
        ("Strict", strict),
        ("Lossy", lossy),
    ] * 4
    assert table[-2][0] == "Average"


def test_table3_is_exact(gpu_results, capsys) -> None:
    table = rows(printed(capsys, "table3", "--results", str(gpu_results), "--format", "md"))
    assert [row[1] for row in table[1:]] == ["0.2", "0.3", "0.4", "0.5"] * 3
    assert all([point(cell) for cell in row[2:]] == ["3.00", "4.03"] * 3 for row in table[1:])


def test_table4_is_exact(gpu_results, capsys) -> None:
    table = rows(printed(capsys, "table4", "--results", str(gpu_results), "--format", "md"))
    assert len(table) - 1 == 3 * 3 + 3 * 4
    part, model = "", ""
    for row in table[1:]:
        part, model = row[0] or part, row[1] or model
        method = "lossy" if "Lossy" in part else "combined"
        key = {"Llama-3.1-8B": "llama31_8b", "Qwen3-8B": "qwen3_8b", "DeepSeek-R1-8B": "deepseek_r1_8b"}[model]
        best = ["4.00", "5.04", "80"] if method == "lossy" else ["5.00", "6.05", "120"]
        for place, kappa in enumerate(KAPPA[method][key]):
            found = [point(cell) for cell in row[3 + 3 * place : 6 + 3 * place]]
            assert found == (best if float(row[2]) == kappa else ["1.00", "2.02", "0"])


def test_table5_is_exact_and_shows_the_exact_mean_too(gpu_results, capsys) -> None:
    table = rows(printed(capsys, "table5", "--results", str(gpu_results), "--format", "md"))
    assert [[point(cell) for cell in row[1:]] for row in table[1:]] == [["2.52"] * 3, ["2.50"] * 3] * 3


def test_the_papers_figure_stands_beside_ours_with_a_verdict(gpu_results, capsys) -> None:
    text = printed(
        capsys, "table5", "--results", str(gpu_results), "--paper", "--model", "llama31_8b", "--format", "md"
    )
    assert "2.52 [2.52, 2.52] (paper 2.83, -0.31: differs)" in text
    assert "2.52 [2.52, 2.52] (paper 2.55, -0.03: differs)" in text


def test_csv_is_one_figure_a_line_with_its_verdict(gpu_results, capsys) -> None:
    text = printed(capsys, "table1", "--results", str(gpu_results), "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    one = next(line for line in lines if line["row"] == "Llama-3.1-8B / EAGLE-3" and line["group"] == "GSM8K")
    assert (one["metric"], one["value"], one["paper"], one["verdict"]) == ("speedup", "2", "1.93", "differs")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"limit": 8}, "8 items, not the full set"),
        ({"protocol": "default"}, "protocol default, not paper"),
        ({"machine": {**A100, "gpu": ["NVIDIA H200"]}}, "NVIDIA H200, not an A100"),
        ({"engine": {"dtype": "float16"}}, "float16"),
    ],
)
def test_what_is_not_comparable_says_why(tmp_path, capsys, changes, reason) -> None:
    for method in ("vanilla", "eagle3"):
        write_cell(tmp_path, arm(method, model="llama31_8b", benchmark="gsm8k", **changes))
    text = printed(capsys, "table1", "--results", str(tmp_path), "--paper", "--model", "llama31_8b")
    assert "paper 1.93, +0.07: not comparable" in text
    assert reason in text


def test_a_cpu_result_never_stands_in_a_paper_column(tmp_path, capsys) -> None:
    for method in ("vanilla", "eagle3"):
        write_cell(tmp_path, arm(method, model="llama31_8b", benchmark="gsm8k", device="cpu", machine=MACHINE))
    table = rows(
        printed(capsys, "table1", "--results", str(tmp_path), "--paper", "--model", "llama31_8b", "--format", "md")
    )
    eagle3 = [row for row in table if row[1] == "EAGLE-3"]
    assert eagle3[0][2] == "missing (paper 1.93)"
    assert point(eagle3[1][2]) == "2.00"
    assert "paper" not in eagle3[1][2]


def test_missing_cells_print_as_missing(tmp_path, capsys) -> None:
    write_cell(tmp_path, arm("vanilla", model="qwen3_8b", benchmark="gsm8k"))
    for table in ("table1", "table2", "table3", "table4", "table5", "table6", "table7", "table8"):
        assert "missing" in printed(capsys, table, "--results", str(tmp_path), "--paper")


def test_two_settings_are_never_mixed_in_one_row(tmp_path, capsys) -> None:
    for limit in (4, 8):
        for method in ("vanilla", "eagle3"):
            write_cell(
                tmp_path,
                arm(method, model="smollm2_135m", benchmark="demo", limit=limit, device="cpu", machine=MACHINE),
            )
    text = printed(capsys, "table5", "--results", str(tmp_path), "--model", "smollm2_135m")
    assert "first 4 items" in text
    assert "first 8 items" in text


def change(part: str, **fields: object) -> Callable[[Cell], None]:
    """Another value in the cell or its machine, with the id that goes with it."""

    def mutate(cell: Cell) -> None:
        record = cell.record
        (record["provenance"] if part == "machine" else record["cell"])[part] |= fields
        record["cell_id"] = f"{record['cell_id'].rpartition('-')[0]}-{id_digits(record['cell'])}"

    return mutate


SETTINGS = [
    change("model", enable_thinking=True), change("model", chat_template_sha256="ee"), change("benchmark", max_new_tokens=80),
    change("benchmark", stop=["Question"]), change("benchmark", prompts_sha256="ee"), change("machine", hostname_sha256="bb" * 8),
    change("engine", mem_fraction_static=0.5), change("engine", server_args={"x": 1}),
    change("model", target={"id": "org/smollm2_135m", "revision": "r2", "sha256": None}),
]  # fmt: skip


@pytest.mark.parametrize("mutate", SETTINGS)
def test_any_other_setting_is_a_block_of_its_own_with_a_label_of_its_own(tmp_path, mutate) -> None:
    at = {"model": "smollm2_135m", "benchmark": "demo", "device": "cpu", "machine": MACHINE, "protocol": "default"}
    for repeat, spoil in enumerate((None, mutate)):  # the machine is no part of an id
        for method in ("vanilla", "eagle3"):
            write_cell(tmp_path, arm(method, **at, repeat=repeat), spoil)
    made = blocks(Study.load(tmp_path), frozenset({"smollm2_135m"}))
    assert [len(block.arms) for block in made] == [2, 2]
    assert len({block.label for block in made}) == 2


def test_a_block_spans_benchmarks_at_their_own_caps(tmp_path) -> None:
    for benchmark, cap in (("gsm8k", 2048), ("humaneval", 4096)):
        write_cell(
            tmp_path,
            arm("vanilla", model="llama31_8b", benchmark=benchmark),
            change("benchmark", max_new_tokens=cap, prompts_sha256=benchmark),
        )
    (block,) = blocks(Study.load(tmp_path), frozenset({"llama31_8b"}))
    assert len(block.arms) == 2


READINGS = {
    "eagle3": {"shape": [5, 1, 6]}, "talon": {"table": [[7, 1, 8], [6, 1, 8], [4, 2, 8], [3, 4, 8]]}, "fly": {"entropy": "full"},
    "dynamic": {"rounding": "half_even"}, "lossy": {"max_promotions": None}, "combined": {"rar_init": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("method", READINGS)
def test_another_reading_of_a_method_never_fills_its_row(tmp_path, method) -> None:
    at = {"model": "llama31_8b", "benchmark": "gsm8k"}
    write_cell(tmp_path, arm(method, options=READINGS[method], **at))
    (block,) = blocks(Study.load(tmp_path), frozenset({"llama31_8b"}))
    assert block.cell(method, "gsm8k") is None
    cell_id = write_cell(tmp_path, arm(method, **at))
    (block,) = blocks(Study.load(tmp_path), frozenset({"llama31_8b"}))
    assert len(block.arms) == 2
    for arms in (block.arms, block.arms[::-1]):  # folders come in the order of their hashes
        found = replace(block, arms=arms).cell(method, "gsm8k")
        assert found is not None
        assert found.record.cell_id == cell_id


def test_eagle3_at_another_shape_never_fills_table5(tmp_path, capsys) -> None:
    write_cell(tmp_path, arm("eagle3", model="llama31_8b", benchmark="gsm8k", shape=(5, 1, 6)))
    table = rows(printed(capsys, "table5", "--results", str(tmp_path), "--model", "llama31_8b", "--format", "md"))
    assert table[1:] == [["Llama-3.1-8B", "missing", "missing", "missing"]]


def test_the_papers_grader_judges_the_cell_of_the_row_above(tmp_path, capsys) -> None:
    """Not the same method at another d, which may have other answers."""
    at = {"model": "llama31_8b", "benchmark": "gsm8k"}
    wrong = [Item(TOKENS, 1.2, 20, correct=False)] * N
    for spec in (arm("vanilla", **at), arm("eagle3", **at), arm("combined", **at)):
        write_cell(tmp_path, spec)
    for d in (0.2, 0.3, 0.4):  # several, so that one of them comes first whatever the hashes
        write_cell(tmp_path, arm("combined", d=d, **at).with_(items=wrong))
    table = rows(printed(capsys, "table1", "--results", str(tmp_path), "--model", "llama31_8b", "--format", "md"))
    assert next(point(row[4]) for row in table if row[1] == "AdaptiveSpec (Combined), paper's grader") == "120"


def test_the_demos_cells_stand_at_their_own_kappa_and_d(tmp_path, capsys, cell_of) -> None:
    for method in ARMS:
        cell = cell_of(f"method={method}").method
        kappa, d = (cell["accept"] or {}).get("kappa"), (cell["tree"] or {}).get("d")
        demo = {"model": "smollm2_135m", "benchmark": "demo", "device": "cpu", "machine": MACHINE}
        write_cell(tmp_path, arm(method, kappa=kappa, d=d, **demo))
    text = printed(capsys, "table1", "--results", str(tmp_path), "--model", "smollm2_135m", "--format", "csv")
    speedups = {
        line["row"].partition(" / ")[2]: line["value"]
        for line in csv.DictReader(io.StringIO(text))
        if (line["group"], line["metric"]) == ("demo", "speedup")
    }
    assert speedups["AdaptiveSpec (Dynamic-only)"] == "3"
    assert speedups["AdaptiveSpec (Lossy-only)"] == "4"
    assert speedups["AdaptiveSpec (Combined)"] == "5"


def test_the_fastest_static_tree_is_named(tmp_path, capsys) -> None:
    for method in ("vanilla", "eagle3"):
        write_cell(tmp_path, arm(method, model="llama31_8b", benchmark="gsm8k"))
    for shape, seconds in (((5, 1, 6), 2.0), ((7, 1, 8), 4.0)):
        items = [Item(tokens=TOKENS, latency_s=seconds, steps=40)] * N
        write_cell(
            tmp_path,
            arm("eagle3", model="llama31_8b", benchmark="gsm8k").with_(method="static", shape=shape, items=items),
        )
    table = rows(printed(capsys, "table1", "--results", str(tmp_path), "--model", "llama31_8b", "--format", "md"))
    assert next(point(row[2]) for row in table if row[1] == "Best static strict (5,1,6)") == "3.00"


def test_summary_shows_rows_intervals_and_what_has_none(tmp_path, capsys) -> None:
    ids = [
        write_cell(tmp_path, arm(method, device="cpu", machine=MACHINE, model="m", benchmark="demo")) for method in ARMS
    ]
    (tmp_path / "eagle3-m-demo-half").mkdir()
    (tmp_path / "eagle3-m-demo-half" / "generations.jsonl").write_text("{}\n")
    text = printed(capsys, "summary", "--results", str(tmp_path))
    assert text.index("vanilla") < text.index("eagle3") < text.index("combined")
    assert "5.00 [5.00, 5.00]" in text
    assert "no row: eagle3-m-demo-half: unfinished" in text
    only = printed(capsys, "summary", "--results", str(tmp_path), "--cells", ids[-1])
    assert "combined kappa=0.2 d=0.5" in only
    assert "lossy" not in only
    assert "5.00" in only, "references are found among all records"


def test_a_missing_reference_prints_a_dash_and_the_command_that_adds_it(tmp_path, capsys) -> None:
    write_cell(
        tmp_path,
        arm("combined", device="cpu", machine=MACHINE, model="m", benchmark="demo", limit=8, protocol="default"),
    )
    text = printed(capsys, "summary", "--results", str(tmp_path))
    assert "python run.py method=vanilla model=m benchmark=demo engine.device=cpu limit=8" in text
    assert "python run.py method=eagle3" in text
    assert " - " in text


def test_repeats_are_one_row_with_the_restarts_deviation(tmp_path, capsys) -> None:
    for repeat, factor in enumerate((1.0, 1.1)):
        for method in ("vanilla", "eagle3"):
            spec = arm(method, device="cpu", machine=MACHINE, model="m", benchmark="demo", repeat=repeat)
            scaled = [
                Item(TOKENS, item.latency_s * (factor if method == "eagle3" else 1), item.steps) for item in spec.items
            ]
            write_cell(tmp_path, spec.with_(items=scaled))
    text = printed(capsys, "summary", "--results", str(tmp_path))
    assert text.count("eagle3 ") == 1
    assert "8 x 2" in text
    assert "between restarts: eagle3" in text
    assert "6.7 % standard deviation" in text


def test_bad_input_is_one_line(tmp_path, capsys) -> None:
    assert tables.main(["table1", "--results", str(tmp_path / "none")]) == 1
    assert "no such folder" in capsys.readouterr().err
    assert tables.main(["table1", "--results", str(tmp_path), "--model", "llama31_8b,lama"]) == 1
    assert "--model lama: " in capsys.readouterr().err


def test_a_table_of_several_models_is_one_table(tmp_path, capsys) -> None:
    """`make reproduce-table1 MODEL=a,b` sweeps both, so its table has both and no third."""
    names = {"llama31_8b": "Llama-3.1-8B", "qwen3_8b": "Qwen3-8B", "smollm2_135m": "smollm2_135m"}
    for model in names:
        write_cell(tmp_path, arm("vanilla", model=model, benchmark="gsm8k"))
    for table, shown in (("summary", names), ("table1", names.values())):
        text = printed(capsys, table, "--results", str(tmp_path), "--model", "qwen3_8b,smollm2_135m")
        assert [name in text for name in shown] == [False, True, True]


def test_latex_escapes(tmp_path, capsys) -> None:
    write_cell(tmp_path, arm("vanilla", device="cpu", machine=MACHINE, model="smollm2_135m", benchmark="demo"))
    text = printed(capsys, "summary", "--results", str(tmp_path), "--format", "latex")
    assert r"smollm2\_135m" in text
    assert r"100.0 \%" in text


def test_tables_need_neither_wandb_nor_plotly(tmp_path) -> None:
    """R116: tables are built from local records with wandb absent."""
    write_cell(tmp_path, arm("vanilla"))
    code = (
        "import sys; sys.modules.update(wandb=None, plotly=None)\n"
        f"from analysis.tables import main; sys.exit(main(['summary', '--results', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "vanilla" in done.stdout
