"""What the pictures show, from synthetic records."""

from pathlib import Path

from analysis.arms import Study
from analysis.figures import study_figures
from tests.analysis.synthetic import Cell, Item, Spec, write_cell


def study_of(folder: Path, specs: list[Spec]) -> Study:
    for spec in specs:
        write_cell(folder, spec)
    return Study.load(folder)


def test_arms_of_one_method_can_be_told_apart(tmp_path: Path) -> None:
    items = [Item(61, 1.5, 20)] * 6
    swept = [Spec("combined", items, kappa=kappa) for kappa in (0.05, 0.1, 0.2)]
    study = study_of(tmp_path, [Spec("vanilla", [Item(61, 2.0)] * 6), Spec("eagle3", items), *swept])
    figures = {name.split()[0]: figure for name, figure in study_figures(study).items()}
    marks = [trace.marker.symbol for trace in figures["pareto"].data if "combined" in trace.name]
    assert len(marks) == len(set(marks)) == 3
    dashes = [trace.line.dash for trace in figures["depth"].data if "combined" in trace.name]
    assert len(dashes) == len(set(dashes)) == 3


def test_a_legend_leaves_out_what_all_arms_share_and_nothing_else(tmp_path: Path) -> None:
    items = [Item(61, 1.5, 20)] * 6
    arms = [Spec("combined", items, d=d) for d in (0.3, 0.5)]
    both = study_of(tmp_path / "both", [Spec("vanilla", [Item(61, 2.0)] * 6), *arms])
    one = study_of(tmp_path / "one", [Spec("vanilla", [Item(61, 2.0)] * 6), arms[1]])
    shown = [
        {
            trace.name
            for name, figure in study_figures(study).items()
            if name.startswith("depth")
            for trace in figure.data
        }
        for study in (both, one)
    ]
    assert shown == [{"combined kappa=0.2 d=0.3", "combined kappa=0.2 d=0.5"}, {"combined kappa=0.2"}]


def test_an_arm_looks_alike_in_every_picture_also_beside_one_without_a_figure(tmp_path: Path) -> None:
    def graded_by_another(cell: Cell) -> None:  # so it has no recovery, and no place in the Pareto picture
        for grade in cell.grades:
            grade["grader_version"] = "2"

    items = [Item(61, 1.5, 20)] * 6
    first, *others = (Spec("combined", items, kappa=kappa) for kappa in (0.05, 0.1, 0.2))
    write_cell(tmp_path, first, graded_by_another)
    study = study_of(tmp_path, [Spec("vanilla", [Item(61, 2.0)] * 6), Spec("eagle3", items), *others])
    figures = {name.split()[0]: figure for name, figure in study_figures(study).items()}
    pareto, depth = ({trace.name: trace.marker.symbol for trace in figures[name].data} for name in ("pareto", "depth"))
    assert set(depth) - set(pareto) == {"combined kappa=0.05"}
    shared = set(depth) & set(pareto)
    assert len(shared) == 3
    assert all(depth[name] == pareto[name] for name in shared)
