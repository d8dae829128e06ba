"""Pictures, as Plotly figures: the same objects go into the report and to W&B.

figures = study_figures(study)      # {"pareto": Figure, ...}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from analysis import metrics, published
from analysis.arms import Arm, Figure, Study, labels
from analysis.blocks import blocks, find
from analysis.checked import Checked
from analysis.stats import Estimate
from analysis.summary import order

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = {
    "vanilla": "#999999", "eagle3": "#0072B2", "static": "#56B4E9", "talon": "#009E73",
    "dynamic": "#E69F00", "fly": "#CC79A7", "lossy": "#D55E00", "combined": "#000000",
}  # fmt: skip
# Arms of one method share its colour; these tell them apart.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def style(title: str, x: str, y: str, **more: Any) -> dict[str, Any]:
    """The layout that all figures share."""
    return {
        "title": {"text": title, "font": {"size": 15}},
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "template": "plotly_white",
        "margin": {"l": 55, "r": 15, "t": 60, "b": 45},
        "legend": {"orientation": "h", "y": -0.25, "font": {"size": 11}},
        "height": 420,
        **more,
    }


def colour(arm: Arm) -> str:
    """A method's colour everywhere."""
    return COLOURS.get(arm.record.method, "#666666")


def variants(arms: Sequence[Arm]) -> list[int]:
    """Each arm's place among the arms of its method."""
    methods = [arm.record.method for arm in arms]
    return [methods[:place].count(method) for place, method in enumerate(methods)]


def names(arms: Sequence[Arm]) -> list[str]:
    """Each arm's label among these, without the option that all of one picture share, so that a legend fits a phone."""
    found = labels(arms)
    scores = {arm.record.d for arm in arms if arm.record.d is not None}
    common = f" d={scores.pop():g}" if len(scores) == 1 else None
    return [found[arm].replace(common, "") if common else found[arm] for arm in arms]


def study_figures(study: Study) -> dict[str, go.Figure]:
    """All figures over several cells, per benchmark of each block; only those that have something to show."""
    found: dict[str, go.Figure] = {}
    for place, arms in tasks(study).items():
        made = {
            "pareto": pareto(study, arms),
            "decomposition": decomposition(study, arms),
            "depth": depth(arms),
            "kappa": sweep(study, arms, "kappa"),
            "d": sweep(study, arms, "d"),
        }
        for name, figure in made.items():
            if figure is not None:
                figure.update_layout(title_text=f"{figure.layout.title.text}<br><sub>{place}</sub>")
                found[f"{name} {place}"] = figure
    return found


def tasks(study: Study) -> dict[str, list[Arm]]:
    """Arms that may share a picture: one benchmark, one model, one setting."""
    found: dict[str, list[Arm]] = {}
    for block in blocks(study, None):
        for arm in sorted(block.arms, key=order):
            found.setdefault(f"{block.label}, {arm.record.benchmark}", []).append(arm)
    return found


def whiskers(figures: Sequence[Estimate]) -> dict[str, Any]:
    """Asymmetric error bars of estimates."""
    ends = [figure.interval or (figure.value, figure.value) for figure in figures]
    return {
        "type": "data", "symmetric": False, "thickness": 1,
        "array": [end[1] - figure.value for end, figure in zip(ends, figures, strict=True)],
        "arrayminus": [figure.value - end[0] for end, figure in zip(ends, figures, strict=True)],
    }  # fmt: skip


def with_recovery(study: Study, arms: Iterable[Arm]) -> list[tuple[Arm, Estimate, Estimate]]:
    """Arms that have both figures; a strict arm keeps 100 by definition."""
    found = []
    for arm in arms:
        speedup: Figure = study.speedup(arm)
        recovery: Figure = Estimate(100.0) if arm.record.rule == "strict" else study.recovery(arm)
        if isinstance(speedup, Estimate) and isinstance(recovery, Estimate):
            found.append((arm, speedup, recovery))
    return found


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both coordinates, by the first one."""
    best = [
        point
        for point in points
        if not any(other[0] >= point[0] and other[1] >= point[1] and other != point for other in points)
    ]
    return sorted(set(best))


def pareto(study: Study, arms: Sequence[Arm]) -> go.Figure | None:
    """Speedup against recovery with intervals, and the front."""
    known = with_recovery(study, arms)
    if not known:
        return None
    figure = go.Figure(layout=style("Speedup against recovery", "recovery, %", "speedup"))
    best = front([(recovery.value, speedup.value) for _, speedup, recovery in known])
    figure.add_scatter(
        x=[x for x, _ in best],
        y=[y for _, y in best],
        mode="lines",
        name="Pareto front",
        line={"dash": "dot", "color": "#888"},
    )
    # Looks come from all arms: an arm without one of the figures here must not change another's between two pictures.
    looks = dict(zip(arms, zip(names(arms), variants(arms), strict=True), strict=True))
    for arm, speedup, recovery in known:
        name, variant = looks[arm]
        marker = {"color": colour(arm), "size": 9, "symbol": SYMBOLS[variant % len(SYMBOLS)]}
        figure.add_scatter(
            x=[recovery.value], y=[speedup.value], name=name, mode="markers", marker=marker,
            error_x=whiskers([recovery]), error_y=whiskers([speedup]),
        )  # fmt: skip
    return figure


def decomposition(study: Study, arms: Sequence[Arm]) -> go.Figure | None:
    """speedup = tau / step cost: tau as bars, the step cost as what it is divided by."""
    rows = []
    for arm, name in zip(arms, names(arms), strict=True):
        speedup, tau = study.speedup(arm), arm.tau
        if isinstance(speedup, Estimate) and isinstance(tau, Estimate):
            rows.append((name, tau.value, metrics.step_cost(tau.value, speedup.value), speedup.value))
    if not rows:
        return None
    labels, taus, costs, speedups = (list(column) for column in zip(*rows, strict=True))
    figure = go.Figure(layout=style("speedup = tau / step cost", "", "", barmode="group", height=160 + 50 * len(rows)))
    figure.update_yaxes(autorange="reversed", automargin=True)  # the first arm on top, its whole name beside it
    figure.update_layout(legend={"y": -0.1, "traceorder": "normal"})
    for name, values, shade in (
        ("tau", taus, "#56B4E9"),
        ("step cost (plain steps)", costs, "#E69F00"),
        ("speedup", speedups, "#009E73"),
    ):
        text = [f"{value:.2f}" for value in values]
        figure.add_bar(
            x=values,
            y=labels,
            orientation="h",
            name=name,
            marker_color=shade,
            text=text,
            textangle=0,
            constraintext="none",
        )
    return figure


def depth(arms: Sequence[Arm]) -> go.Figure | None:
    """Share of verify steps in which at least so many drafts were accepted (the engine's histogram)."""
    figure = go.Figure(layout=style("Acceptance by depth", "at least so many drafts accepted", "share of verify steps"))
    for arm, name, variant in zip(arms, names(arms), variants(arms), strict=True):
        histogram = metrics.pooled_histogram(pd.concat([cell.frame for cell in arm.cells]))
        if histogram:
            shares = metrics.acceptance_by_depth(histogram)
            line = {"color": colour(arm), "dash": DASHES[variant % len(DASHES)]}
            figure.add_scatter(
                x=list(shares), y=list(shares.values()), name=name, mode="lines+markers", line=line,
                marker_symbol=SYMBOLS[variant % len(SYMBOLS)],
            )  # fmt: skip
    return figure if figure.data else None


def sweep(study: Study, arms: Sequence[Arm], option: str) -> go.Figure | None:
    """Speedup, tau and recovery over kappa or d, of the very cells of Tables 4 and 3; needs two values at least."""
    right = {
        "overlaying": "y",
        "side": "right",
        "title": {"text": "recovery, %"},
        "showgrid": False,
        "tickmode": "auto",
    }
    figure = go.Figure(layout=style(f"Sweep over {option}", option, "speedup, tau", yaxis2=right))
    for method in ("dynamic",) if option == "d" else ("lossy", "combined"):
        known = swept(arms, method, option)
        if len(known) < 2:
            continue
        add_line(figure, f"{method} speedup", option, [(arm, study.speedup(arm)) for arm in known], dash="solid")
        add_line(figure, f"{method} tau", option, [(arm, arm.tau) for arm in known], dash="dash")
        if method != "dynamic":
            add_line(
                figure,
                f"{method} recovery",
                option,
                [(arm, study.recovery(arm)) for arm in known],
                dash="dot",
                axis="y2",
            )
    return figure if figure.data else None


def swept(arms: Sequence[Arm], method: str, option: str) -> list[Arm]:
    """The cell of each value of the option, by value: one a value, all else as conf has it."""
    values = sorted({getattr(arm.record, option) for arm in arms if arm.record.method == method} - {None})
    record = arms[0].record
    others = {} if option == "d" else {"d": published.d(method, record.model, record.benchmark)}
    found = [find(arms, method, record.benchmark, **{option: value}, **others) for value in values]
    return [arm for arm in found if arm is not None]


def add_line(
    figure: go.Figure, name: str, option: str, points: Sequence[tuple[Arm, Figure]], dash: str, axis: str = "y"
) -> None:
    """Add one metric's line over an option, with intervals; arms without the figure are left out."""
    shown = [(arm, one) for arm, one in points if isinstance(one, Estimate)]
    if shown:
        figure.add_scatter(
            x=[getattr(arm.record, option) for arm, _ in shown], y=[one.value for _, one in shown], yaxis=axis, name=name, mode="lines+markers",
            error_y=whiskers([one for _, one in shown]), line={"dash": dash, "color": colour(shown[0][0])},
        )  # fmt: skip


def cell_figures(cell: Checked) -> dict[str, go.Figure]:
    """Figures of one cell: tau and acceptance by depth, shapes over time, DCS histogram."""
    arm = Arm((cell,))
    made = {"depth": depth([arm]), "shapes": shapes(cell), **trace_figures(cell)}
    return {name: figure for name, figure in made.items() if figure is not None}


def shapes(cell: Checked) -> go.Figure | None:
    """How often each tree shape was chosen."""
    counts = metrics.pooled_shapes(cell.frame)
    if not counts:
        return None
    figure = go.Figure(
        layout=style(
            f"Tree shapes<br><sub>{cell.record.place}</sub>", "(num_steps, topk, num_draft_tokens)", "verify steps"
        )
    )
    figure.add_bar(x=["({},{},{})".format(*shape) for shape in counts], y=list(counts.values()), marker_color="#0072B2")
    return figure


def trace_figures(cell: Checked, n_items: int = 3) -> dict[str, go.Figure]:
    """From the trace: depth of the shapes chosen over the steps of the first items, and the histogram of DCS."""
    if not cell.record.cell["trace"]:
        return {}
    over_time = go.Figure(
        layout=style(f"Shapes over time<br><sub>{cell.record.place}</sub>", "verify step", "num_steps")
    )
    scores: list[float] = []
    for place, line in enumerate(cell.record.generations()):
        steps = line["trace"] or []
        scores += [step["dcs"] for step in steps if step["dcs"] is not None]
        if place < n_items and steps:
            over_time.add_scatter(
                y=[step["shape"][0] for step in steps], mode="lines", line_shape="hv", name=line["item"]
            )
    if not scores:
        return {}
    histogram = go.Figure(
        layout=style(f"Draft confidence score<br><sub>{cell.record.place}</sub>", "DCS", "share of steps")
    )
    histogram.add_histogram(
        x=scores, xbins={"start": 0, "end": 1.0001, "size": 0.05}, histnorm="probability", marker_color="#E69F00"
    )
    return {"shapes_over_time": over_time, "dcs": histogram}
