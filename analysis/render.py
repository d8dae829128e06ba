"""A table without a look, and its looks: text for a terminal, Markdown, CSV, LaTeX.

print(render(Grid("Table 5", ("Model", "GSM8K tau"), (("Llama", "2.83"),), ()), "md"))
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

FORMATS = ("text", "md", "csv", "latex")


@dataclass(frozen=True)
class Grid:
    """A title, one header row, rows of texts, and notes below."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def render(grid: Grid, form: str) -> str:
    """Return the table as text. `form` is one of FORMATS."""
    return {"text": as_text, "md": as_markdown, "csv": as_csv, "latex": as_latex}[form](grid)


def widths(grid: Grid) -> list[int]:
    """Characters that each column needs."""
    return [max(len(cell) for cell in column) for column in zip(grid.header, *grid.rows, strict=True)]


def aligned(row: tuple[str, ...], sizes: list[int]) -> list[str]:
    """Pad the cells: figures to the right, words to the left."""
    return [cell.rjust(size) if cell[:1].isdigit() else cell.ljust(size) for cell, size in zip(row, sizes, strict=True)]


def as_text(grid: Grid) -> str:
    """Aligned columns."""
    sizes = widths(grid)
    lines = [
        "  ".join(aligned(row, sizes)).rstrip()
        for row in (grid.header, tuple("-" * size for size in sizes), *grid.rows)
    ]
    return "\n".join(
        [*([grid.title, ""] if grid.title else []), *lines, *(f"{note}" for note in ["", *grid.notes] if grid.notes)]
    )


def as_markdown(grid: Grid) -> str:
    """GitHub's Markdown, also readable as it is."""
    clean = Grid(
        grid.title, tuple(map(no_pipes, grid.header)), tuple(tuple(map(no_pipes, row)) for row in grid.rows), grid.notes
    )
    sizes = [max(3, size) for size in widths(clean)]
    lines = [
        "| " + " | ".join(aligned(row, sizes)) + " |"
        for row in (clean.header, tuple("-" * size for size in sizes), *clean.rows)
    ]
    head = [f"### {grid.title}", ""] if grid.title else []
    return "\n".join([*head, *lines, *(["", *(f"- {note}" for note in grid.notes)] if grid.notes else [])])


def no_pipes(text: str) -> str:
    """A bar would end the cell."""
    return text.replace("|", "\\|")


def as_csv(grid: Grid) -> str:
    """Header and rows only; notes go to stderr (the caller's concern), so that a program can read this."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([grid.header, *grid.rows])
    return stream.getvalue().rstrip("\n")


LATEX = {
    "\\": r"\textbackslash{}",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def latex_text(text: str) -> str:
    """Escape what LaTeX reads as commands."""
    return "".join(LATEX.get(character, character) for character in text)


def as_latex(grid: Grid) -> str:
    """A booktabs tabular."""
    rows = [" & ".join(latex_text(cell) for cell in row) + r" \\" for row in (grid.header, *grid.rows)]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}",
        r"\toprule",
        rows[0],
        r"\midrule",
        *rows[1:],
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join([f"% {grid.title}", *lines, *(f"% {note}" for note in grid.notes)])
