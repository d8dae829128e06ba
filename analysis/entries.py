"""A paper table's content before it gets a look: entries at (row, column), each with our figure, the paper's and a verdict.

table = Table("Table 5", row_heads=("Model",)); table.add(("Llama",), ("GSM8K", "tau"), figure, ...)
table.grid(paper=True)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from analysis.arms import Figure, Missing
from analysis.render import Grid
from analysis.verdict import Verdict

DIGITS = {"speedup": 2, "tau": 2, "recovery": 0}
HEADS = {"speedup": "Speedup", "tau": "tau", "recovery": "Rec. %"}
TIDY = ("row", "group", "metric", "value", "low", "high", "paper", "difference", "verdict", "reason")
Row = tuple[str, ...]
Column = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """One cell of a table. `fixed` is printed as it is (`-` for a strict method's recovery)."""

    figure: Figure
    paper: float | None = None
    verdict: Verdict | None = None
    fixed: str | None = None


@dataclass
class Table:
    """Entries in order of appearance."""

    title: str
    row_heads: Row
    entries: dict[tuple[Row, Column], Entry] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, row: Row, column: Column, entry: Entry) -> None:
        """Put an entry at (row labels, (column group, metric))."""
        self.entries[row, column] = entry

    @property
    def rows(self) -> list[Row]:
        """Row labels in order."""
        return list(dict.fromkeys(row for row, _ in self.entries))

    @property
    def columns(self) -> list[Column]:
        """Columns in order."""
        return list(dict.fromkeys(column for _, column in self.entries))

    def grid(self, paper: bool) -> Grid:
        """Lay out as in the paper."""
        header = (*self.row_heads, *(f"{group} {HEADS[metric]}".strip() for group, metric in self.columns))
        rows = []
        for row in self.rows:
            cells = [(self.entries.get((row, column)), column[1]) for column in self.columns]
            rows.append((*row, *("" if entry is None else show_entry(entry, metric, paper) for entry, metric in cells)))
        return Grid(
            self.title, header, tuple(blank_repeats(rows, len(self.row_heads) - 1)), tuple(self.all_notes(paper))
        )

    def all_notes(self, paper: bool) -> list[str]:
        """Reasons behind missing cells and verdicts, each once, with how often."""
        counts: dict[str, int] = {}
        for entry in self.entries.values():
            texts = (
                [f"missing: {entry.figure.reason}"] if isinstance(entry.figure, Missing) and entry.fixed is None else []
            )
            if paper and entry.verdict and entry.verdict.word == "not comparable":
                texts.append(str(entry.verdict))
            for text in texts:
                counts[text] = counts.get(text, 0) + 1
        if any(
            column[1] == "recovery" and getattr(entry.figure, "draws", None) is not None
            for (_, column), entry in self.entries.items()
        ):
            self.notes.append("~100: not different from 100 at the 95 % level")
        return [*(f"{text} ({count} cell{'s' * (count > 1)})" for text, count in counts.items()), *self.notes]

    def tidy(self) -> Grid:
        """One line per figure, for programs."""
        rows = []
        for (row, (group, metric)), entry in self.entries.items():
            if entry.fixed is None:
                rows.append((" / ".join(label for label in row if label), group, metric, *numbers(entry)))
        return Grid(self.title, TIDY, tuple(rows), tuple(self.notes))


def blank_repeats(rows: list[Row], heads: int) -> list[Row]:
    """Print a label once, where all labels to its left repeat too."""
    shown = []
    for above, row in zip([None, *rows], rows, strict=False):
        same = next((place for place in range(heads) if above is None or above[place] != row[place]), heads)
        shown.append(("",) * same + row[same:])
    return shown


def show_entry(entry: Entry, metric: str, paper: bool) -> str:
    """`2.39 [2.31, 2.47] (paper 2.43, -0.04: agrees)`."""
    if entry.fixed is not None:
        return entry.fixed
    digits = DIGITS[metric]
    if isinstance(entry.figure, Missing):
        text = "missing"
    else:
        text = f"{entry.figure.value:.{digits}f}"
        if entry.figure.interval:
            text += " [{:.{d}f}, {:.{d}f}]".format(*entry.figure.interval, d=digits)
        if metric == "recovery" and entry.figure.contains(100):
            text += " ~100"
    if not paper or entry.paper is None:
        return text
    if isinstance(entry.figure, Missing):
        return f"{text} (paper {entry.paper:.{digits}f})"
    word = entry.verdict.word if entry.verdict else ""
    return f"{text} (paper {entry.paper:.{digits}f}, {entry.figure.value - entry.paper:+.{digits}f}: {word})"


def numbers(entry: Entry) -> Row:
    """The columns of a tidy line after its keys; empty where there is nothing."""
    paper = "" if entry.paper is None else f"{entry.paper:g}"
    verdict = (entry.verdict.word, entry.verdict.reason) if entry.verdict else ("", "")
    if isinstance(entry.figure, Missing):
        return ("", "", "", paper, "", "missing", entry.figure.reason)
    low, high = (f"{end:.6g}" for end in entry.figure.interval) if entry.figure.interval else ("", "")
    difference = "" if entry.paper is None else f"{entry.figure.value - entry.paper:.6g}"
    return (f"{entry.figure.value:.6g}", low, high, paper, difference, *verdict)
