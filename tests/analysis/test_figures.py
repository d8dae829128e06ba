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


READINGS = ({"max_promotions": None}, {"breaker": None})


def test_another_reading_of_a_method_never_joins_its_line(tmp_path: Path) -> None:
    """A reading, another divisor and another static shape: each would be a point of its own on the line."""
    items = [Item(61, 1.5, 20)] * 6
    at = {"model": "llama31_8b", "benchmark": "gsm8k", "device": "cuda"}
    swept = [Spec(method, items, kappa=kappa, **at) for method in ("lossy", "combined") for kappa in (0.1, 0.2)]
    others = [
        *(Spec("combined", items, kappa=0.2, options=reading, **at) for reading in READINGS),
        Spec("combined", items, kappa=0.3, d=0.3, **at),
        Spec("lossy", items, kappa=0.3, shape=(5, 1, 6), **at),
        Spec("combined", items, kappa=0.2, trace=True, **at),
        *(Spec("dynamic", items, d=d, **at) for d in (0.3, 0.5)),
        Spec("dynamic", items, d=0.4, options={"rounding": "half_even"}, **at),
    ]
    study = study_of(
        tmp_path, [Spec("vanilla", [Item(61, 2.0)] * 6, **at), Spec("eagle3", items, **at), *swept, *others]
    )
    figures = {name.split()[0]: figure for name, figure in study_figures(study).items()}
    lines = {trace.name: list(trace.x) for trace in (*figures["kappa"].data, *figures["d"].data)}
    assert len(lines) == 8
    for name, x in lines.items():
        assert x == ([0.3, 0.5] if name.startswith("dynamic") else [0.1, 0.2]), name


def test_readings_of_one_method_have_names_of_their_own(tmp_path: Path) -> None:
    items = [Item(61, 1.5, 20)] * 6
    arms = [Spec("combined", items, options=options) for options in ({}, *READINGS)]
    study = study_of(tmp_path, [Spec("vanilla", [Item(61, 2.0)] * 6), Spec("eagle3", items), *arms])
    figures = {name.split()[0]: figure for name, figure in study_figures(study).items()}
    shown = {
        "pareto": [trace.name for trace in figures["pareto"].data if trace.name.startswith("combined")],
        "depth": [trace.name for trace in figures["depth"].data if trace.name.startswith("combined")],
        "decomposition": [name for name in figures["decomposition"].data[0].y if name.startswith("combined")],
    }
    for names in shown.values():
        assert len(names) == len(set(names)) == 3
        assert sum("max_promotions=None" in name for name in names) == 1
