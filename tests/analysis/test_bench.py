"""The bench's page from records with known answers."""

import json
from pathlib import Path

from analysis.bench import main
from tests.analysis.synthetic import Item, Spec, write_cell


def test_steps_that_overlap_have_no_time_of_their_own(tmp_path: Path, capsys) -> None:
    write_cell(tmp_path / "runs", Spec("vanilla", [Item(tokens=50, latency_s=2.0)] * 10, engine={"concurrency": 8}))
    assert main(["--results", str(tmp_path / "runs"), "--out", str(tmp_path / "cpu")]) == 0
    (row,) = [
        line for line in capsys.readouterr().out.split("What a step costs")[1].splitlines() if "vanilla " in line[:20]
    ]
    assert row.split("|")[4].strip() == "-"


def test_the_page_has_step_costs_and_ratios(tmp_path: Path, capsys) -> None:
    """Vanilla 40 ms a token, eagle3 twice as fast at tau 2 (so its step costs one of vanilla's), our static 2 % slower."""
    for repeat in range(2):
        write_cell(tmp_path / "runs", Spec("vanilla", [Item(tokens=50, latency_s=2.0)] * 10, repeat=repeat))
        write_cell(tmp_path / "runs", Spec("eagle3", [Item(tokens=50, steps=25, latency_s=1.0)] * 10, repeat=repeat))
        static = Spec(
            "static", [Item(tokens=50, steps=25, latency_s=1.02, promotions=0)] * 10, shape=(3, 1, 4), repeat=repeat
        )
        write_cell(tmp_path / "runs", static)
    assert main(["--results", str(tmp_path / "runs"), "--out", str(tmp_path / "cpu")]) == 0
    page = capsys.readouterr().out
    steps = {
        row.split("|")[1].strip(): row
        for row in page.split("What a step costs")[1].splitlines()
        if row.startswith("| ")
    }
    assert " 40.0 " in steps["vanilla"]
    assert " 40.0 " in steps["eagle3"]
    assert " 1.00 " in steps["eagle3"]
    document = json.loads((tmp_path / "cpu.json").read_text())
    (overhead,) = document["ratios"]
    assert overhead["arms"] == "static (3,1,4) / eagle3"
    assert round(overhead["value"], 4) == round(1 / 1.02, 4)
    assert (overhead["model"], overhead["benchmark"]) == ("smollm2_135m", "demo")
    (origin,) = document["origins"]
    assert "hostname_sha256" not in origin["machine"]
    assert page.startswith(f"Measured on {origin['begun']} at {origin['git_sha'][:10]} on {origin['machine']['cpu']} (")
    assert (tmp_path / "cpu.md").read_text().strip() == page.strip()


def test_the_page_names_each_code_that_it_comes_from(tmp_path: Path, capsys) -> None:
    """Cells kept from an earlier commit stand beside new ones: one commit for all would be a false one."""
    for method, sha in (("vanilla", "a" * 40), ("eagle3", "b" * 40)):
        items = [Item(tokens=50, steps=25, latency_s=1.0)] * 10
        write_cell(tmp_path / "runs", Spec(method, items, provenance={"git_sha": sha}))
    assert main(["--results", str(tmp_path / "runs"), "--out", str(tmp_path / "cpu")]) == 0
    page = capsys.readouterr().out
    assert all(f" at {letter * 10} on " in page for letter in "ab")
