"""Several drafters, protocols or options in one results folder: never one row, never two rows that look alike."""

from pathlib import Path

from analysis.arms import Missing, Study
from analysis.bench import ratios
from analysis.blocks import blocks
from analysis.summary import summary
from tests.analysis.synthetic import Item, Spec, write_cell

ITEMS = [Item(61, 1.5, 20)] * 6


def two_drafters(folder: Path) -> Study:
    write_cell(folder, Spec("vanilla", [Item(61, 2.0)] * 6))
    for sha256 in ("a" * 64, "b" * 64):
        for method in ("eagle3", "combined"):
            write_cell(folder, Spec(method, ITEMS, draft_sha256=sha256))
    return Study.load(folder)


def test_rows_of_two_drafters_are_told_apart(tmp_path: Path) -> None:
    names = [row[0] for row in summary(two_drafters(tmp_path)).rows]
    assert len(names) == len(set(names)) == 5
    assert "vanilla" in names
    assert {"eagle3 [draft.sha256=aaaaaaaa]", "eagle3 [draft.sha256=bbbbbbbb]"} <= set(names)


def test_a_table_has_one_block_per_drafter_each_with_the_vanilla_of_both(tmp_path: Path) -> None:
    made = [block for block in blocks(two_drafters(tmp_path), frozenset({"smollm2_135m"})) if block.arms]
    assert len({block.label for block in made}) == len(made) == 2
    for block in made:
        drafts = {str(arm.record.cell["model"]["draft"]) for arm in block.arms if arm.record.algorithm}
        assert len(drafts) == 1
        assert [arm.record.method for arm in block.arms].count("vanilla") == 1


def test_no_ratio_is_taken_over_another_drafter(tmp_path: Path) -> None:
    study = two_drafters(tmp_path)
    found = [pair for *pair, _, _ in ratios(study.arms) if pair[0].record.method == "combined"]
    assert len(found) == 2
    for ours, theirs in found:
        assert ours.record.cell["model"]["draft"] == theirs.record.cell["model"]["draft"]
    (tmp_path / next(arm.record.cell_id for arm in study.arms if arm.record.method == "eagle3")).rename(
        tmp_path / ".gone"
    )
    study = Study.load(tmp_path)
    lost = [arm for arm in study.arms if arm.record.method == "combined" and isinstance(study.recovery(arm), Missing)]
    assert len(lost) == 1
    assert len([ours for ours, *_ in ratios(study.arms) if ours.record.method == "combined"]) == 1


def test_arms_of_one_label_name_the_option_in_which_they_differ(tmp_path: Path) -> None:
    write_cell(tmp_path, Spec("eagle3", ITEMS))
    write_cell(tmp_path, Spec("eagle3", ITEMS, protocol="paper"))
    write_cell(tmp_path, Spec("eagle3", ITEMS[:3], limit=3, engine={"concurrency": 4}))
    names = {row[0] for row in summary(Study.load(tmp_path)).rows}
    assert names == {
        "eagle3 [protocol=default, limit=None, concurrency=1]",
        "eagle3 [protocol=paper, limit=None, concurrency=1]",
        "eagle3 [protocol=default, limit=3, concurrency=4]",
    }
