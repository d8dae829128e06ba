"""The transcription of the paper: its derived tables and the figures quoted in its text follow from the CSV."""

import statistics

import pytest

from analysis import published

# Table 2 as printed: static speedup, tau, recovery; dynamic speedup, tau, recovery.
TABLE2 = {
    ("llama31_8b", "strict"): (1.71, 2.49, 100, 2.23, 3.69, 100),
    ("llama31_8b", "lossy"): (2.22, 4.17, 93, 2.46, 4.20, 98),
    ("qwen3_8b", "strict"): (1.58, 2.23, 100, 1.76, 2.74, 100),
    ("qwen3_8b", "lossy"): (1.47, 2.61, 92, 1.87, 3.01, 102),
    ("deepseek_r1_8b", "strict"): (2.16, 3.05, 100, 2.65, 4.40, 100),
    ("deepseek_r1_8b", "lossy"): (2.90, 5.19, 92, 2.98, 5.10, 93),
    (None, "strict"): (1.82, 2.59, 100, 2.21, 3.61, 100),
    (None, "lossy"): (2.20, 3.99, 92, 2.44, 4.10, 98),
}
# Gains of combined over eagle3 as quoted: on average per model, and the range over the cells.
QUOTED_AVERAGE = {"llama31_8b": 44, "qwen3_8b": 18, "deepseek_r1_8b": 38}
QUOTED_RANGE = (17, 56)


@pytest.mark.parametrize(("model", "rule"), TABLE2)
def test_table2_follows_from_table1(model: str | None, rule: str) -> None:
    methods = ("eagle3", "dynamic") if rule == "strict" else ("lossy", "combined")
    derived = [
        published.table2(model, method, metric) for method in methods for metric in ("speedup", "tau", "recovery")
    ]
    assert derived == [pytest.approx(value) for value in TABLE2[model, rule]]


def test_table5_is_table1s_eagle3_tau() -> None:
    taus = {
        (row["model"], row["benchmark"]): row["tau"] for row in published.rows("table1") if row["method"] == "eagle3"
    }
    assert {(row["model"], row["benchmark"]): row["tau"] for row in published.rows("table5")} == taus


def test_table1_is_table3_at_one_half() -> None:
    rows = [row for row in published.rows("table1") if row["method"] == "dynamic"]
    assert len(rows) == 9
    for row in rows:
        for metric in ("speedup", "tau"):
            keys = {"model": row["model"], "benchmark": row["benchmark"], "d": 0.5}
            assert published.lookup("table3", metric, **keys) == float(row[metric])


@pytest.mark.parametrize("method", ["lossy", "combined"])
def test_table1_is_table4_at_table8s_kappa(method: str) -> None:
    rows = [row for row in published.rows("table1") if row["method"] == method]
    assert len(rows) == 9
    for row in rows:
        kappa = published.kappa(method, row["model"], row["benchmark"])
        for metric in ("speedup", "tau", "recovery"):
            keys = {"method": method, "model": row["model"], "benchmark": row["benchmark"], "kappa": kappa}
            assert published.lookup("table4", metric, **keys) == float(row[metric])


def test_the_gains_quoted_in_the_text() -> None:
    speedups = {
        (row["model"], row["benchmark"], row["method"]): float(row["speedup"]) for row in published.rows("table1")
    }
    gains = {
        key[:2]: value / speedups[(*key[:2], "eagle3")] - 1 for key, value in speedups.items() if key[2] == "combined"
    }
    assert (round(100 * min(gains.values())), round(100 * max(gains.values()))) == QUOTED_RANGE
    for model, quoted in QUOTED_AVERAGE.items():
        combined, eagle3 = (published.table2(model, method, "speedup") for method in ("combined", "eagle3"))
        assert combined is not None
        assert eagle3 is not None
        assert round(100 * (combined / eagle3 - 1)) == quoted


def test_135_cells() -> None:
    """3 models x 3 benchmarks x (vanilla, eagle3, talon, fly, 4 d, 3 + 4 kappa)."""
    others = [row for row in published.rows("table1") if row["method"] in ("eagle3", "talon", "fly")]
    vanilla = 9
    assert vanilla + len(others) + len(published.rows("table3")) + len(published.rows("table4")) == 135


def test_the_lint_finds_a_planted_cell_and_passes_a_steady_group() -> None:
    steady = [published.Point("g", f"p{n}", speedup, 1.6 * speedup) for n, speedup in enumerate((1.5, 2.0, 2.5))]
    assert published.lint(steady) == []
    found = published.lint([*steady, published.Point("g", "planted", 1.5, 3.2)])
    assert len(found) == 1
    assert "planted" in found[0]


def test_the_lint_names_the_papers_odd_cell() -> None:
    found = published.lint(published.points())
    assert any("Qwen3-8B" in text and "MATH-500 0.10" in text for text in found)
    usual = [point.cost for point in published.points() if point.group == "EAGLE-3, Llama-3.1-8B"]
    assert statistics.median(usual) == pytest.approx(1.47, abs=0.01)


def test_the_papers_cells_keep_the_papers_kappa_and_d_and_others_take_confs(cell_of) -> None:
    assert published.kappa("lossy", "deepseek_r1_8b", "math500") == 0.10
    assert published.d("combined", "deepseek_r1_8b", "math500") == 0.5
    assert published.kappa("fly", "llama31_8b", "gsm8k") is published.d("lossy", "llama31_8b", "gsm8k") is None
    for model, benchmark in (("smollm2_135m", "demo"), ("smollm2_135m", "gsm8k")):
        cell = cell_of("method=combined", f"model={model}", f"benchmark={benchmark}").method
        assert published.kappa("combined", model, benchmark) == cell["accept"]["kappa"]
        assert published.d("combined", model, benchmark) == cell["tree"]["d"]
