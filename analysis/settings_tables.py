"""Tables 6 to 8: the paper's settings beside those that were measured.

python -m analysis.tables table8 --results results/runs
"""

from __future__ import annotations

from analysis import published
from analysis.arms import Arm, Models, Study, wanted
from analysis.blocks import blocks, columns, is_cell
from analysis.records import Node, Record
from analysis.render import Grid


def table6(study: Study, models: Models) -> Grid:
    """Target and draft per model, with the revisions that were measured."""
    published_rows = {row["model"]: row for row in published.rows("table6")}
    rows = []
    for block in blocks(study, models):
        paper = published_rows.get(block.model, {})
        speculative = [arm.record for arm in block.arms if arm.record.cell["model"]["draft"]]
        records = speculative or [arm.record for arm in block.arms]
        node: Node = records[0].cell["model"] if records else {}
        target, draft = checkpoint(node.get("target")), checkpoint(node.get("draft"))
        rows.append((block.label, paper.get("target", "-"), target, paper.get("draft", "-"), draft))
    header = ("Model", "Paper's target", "Measured target", "Paper's draft", "Measured draft")
    return Grid("Table 6: targets and drafts", header, tuple(rows))


def checkpoint(node: Node | None) -> str:
    """`id@revision`, or by its weights' hash where it has no revision."""
    if not node:
        return "missing"
    version = node.get("revision") or f"sha256:{str(node.get('sha256'))[:12]}"
    return f"{node['id']}@{version}"


def table7(study: Study, models: Models) -> Grid:
    """Shape, rule and options per method."""
    rows = []
    for row in published.rows("table7"):
        arms = [arm for arm in study.arms if arm.record.method == row["method"] and wanted(arm.record.model, models)]
        measured = sorted({settings(arm.record) for arm in arms}) or ["missing"]
        paper = f"{row['shape']}; {row['rule']} {row['options']}".strip()
        rows += [
            (published.METHODS[row["method"]] if place == 0 else "", paper if place == 0 else "", text)
            for place, text in enumerate(measured)
        ]
    return Grid("Table 7: method settings", ("Method", "Paper", "Measured"), tuple(rows))


def settings(record: Record) -> str:
    """A method's options in one line, less those that are swept."""
    swept = ("policy", "rule", "kappa", "d", "table")
    options = {**record.tree, **record.accept}
    shown = " ".join(
        f"{name}={value}".replace(" ", "")
        for name, value in sorted(options.items())
        if name not in swept and value is not None
    )
    return f"{record.tree.get('policy')}, {record.rule}: {shown}"


def table8(study: Study, models: Models) -> Grid:
    """kappa per cell: the paper's picks, and which thresholds were measured."""
    chosen = blocks(study, models)
    rows = []
    for block in chosen:
        for method in ("combined", "lossy"):
            cells = []
            for benchmark in columns(chosen):
                paper = published.lookup("table8", "kappa", method=method, model=block.model, benchmark=benchmark)
                cells.append(f"{'-' if paper is None else f'{paper:.2f}'}; {kappas(block.arms, method, benchmark)}")
            rows.append((block.label, published.METHODS[method], *cells))
    header = ("Model", "Method", *(published.BENCHMARKS.get(name, name) for name in columns(chosen)))
    return Grid("Table 8: margin threshold kappa per cell (paper; measured)", header, tuple(rows))


def kappas(arms: tuple[Arm, ...], method: str, benchmark: str) -> str:
    """The thresholds that were measured."""
    found = {arm.record.kappa for arm in arms if is_cell(arm.record, method, benchmark)}
    return ", ".join(f"{value:.2f}" for value in sorted(value for value in found if value is not None)) or "missing"
