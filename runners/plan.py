"""A pure planner: from asked cells to the order in which servers are started and cells are measured.

plan = make_plan(asked, references, repeats=1, fresh_servers=False)
plan.summary()      # "135 cells, 15 server starts"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from adaptivespec.shape import TreeShape
from runners.cell import Cell, canonical

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Cells that one running server serves, one after the other."""

    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Plan:
    """Every cell once, in groups, in the order to run."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells in running order."""
        return tuple(cell for group in self.groups for cell in group.cells)

    def summary(self) -> str:
        """`135 cells, 15 server starts`."""
        cells, starts = len(self.cells), len(self.groups)
        return f"{cells} cell{'s' * (cells != 1)}, {starts} server start{'s' * (starts != 1)}"


def make_plan(
    asked: Sequence[Cell], references: Mapping[str, Mapping[str, Any]] | None, repeats: int, fresh_servers: bool
) -> Plan:
    """Plan the asked cells. `references` holds the method nodes of vanilla and eagle3, or None to add no reference arms."""
    cells, notes = unique(asked)
    notes += shape_notes(cells)
    if references is not None:
        added = missing_references(cells, references)
        notes += [f"added {cell.label}: a ratio needs it (references=off prevents this)" for cell in added]
        cells = added + cells
    grouped = [Group((cell,)) for cell in cells] if fresh_servers else group_cells(cells)
    groups = [
        Group(rotate(tuple(cell.with_repeat(repeat) for cell in group.cells), repeat))
        for repeat in range(repeats)
        for group in rotate(tuple(grouped), repeat)
    ]
    return Plan(tuple(groups), tuple(notes))


def unique(asked: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """Drop cells that were asked for more than once, with a note."""
    found: dict[str, Cell] = {}
    twice: dict[str, int] = {}
    for cell in asked:
        if cell.key in found:
            twice[cell.key] = twice.get(cell.key, 1) + 1
        found.setdefault(cell.key, cell)
    notes = [
        f"{found[key].label} was asked for {count} times: it is one cell and is run once"
        for key, count in twice.items()
    ]
    return list(found.values()), notes


def shape_notes(cells: Sequence[Cell]) -> list[str]:
    """Name shapes that draft deeper than they verify: the deepest drafts are wasted."""
    shapes = {TreeShape.of(tree["shape"]) for cell in cells if (tree := cell.method["tree"]) and tree.get("shape")}
    return [
        f"shape ({shape}) drafts {shape.num_steps} deep, but only num_draft_tokens - 1 = {shape.max_accepted} drafts can be "
        f"verified: tau is at most {shape.max_accepted + 1}"
        for shape in sorted(shapes)
        if shape.max_accepted < shape.num_steps
    ]


def missing_references(cells: Sequence[Cell], methods: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Return the arms that the cells' ratios need and that were not asked for: vanilla (speedup), eagle3 (recovery)."""
    known = {cell.key for cell in cells}
    added: dict[str, Cell] = {}
    for cell in cells:
        if not cell.speculative:
            continue
        lossless = (cell.method["accept"] or {}).get("rule") == "strict"
        for name in ["vanilla"] if lossless else ["vanilla", "eagle3"]:
            reference = replace(cell, method=methods[name], trace=False)
            if reference.key not in known:
                added.setdefault(reference.key, reference)
    return list(added.values())


def group_cells(cells: Sequence[Cell]) -> list[Group]:
    """Put cells that one server can serve together, in order of first appearance."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(server_key(cell), []).append(cell)
    return [Group(tuple(members)) for members in groups.values()]


def server_key(cell: Cell) -> str:
    """Equal for cells that differ only in what a request carries: benchmark, limit, accept rule with its options, d, trace."""
    algorithm, tree = cell.method["algorithm"], cell.method["tree"] or {}
    if algorithm == "ADAPTIVESPEC":
        tree = {key: value for key, value in tree.items() if key != "d"}
    model = cell.model if algorithm else {**cell.model, "draft": None}
    return canonical([algorithm, tree, model, cell.engine, cell.seed, cell.repeat])


def rotate(items: tuple[T, ...], by: int) -> tuple[T, ...]:
    """Begin later each round, so that drift over a run cannot favour one arm."""
    by %= len(items) or 1
    return items[by:] + items[:by]
