"""What can be said of a plan before anything is loaded: does a model fit this machine, and how long will it take.

too_large(cell)      # None, or why this machine cannot serve the cell
hours(plan.cells)    # a guess
"""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from runners.cell import Cell
from runners.resolve import cap_of

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def too_large(cell: Cell) -> str | None:
    """Say why a model cannot be served by this machine's CPU; None where it can, where a GPU serves it, or where its size is not told."""
    parameters = cell.model.get("parameters")
    if cell.engine["device"] != "cpu" or parameters is None:
        return None
    needed = parameters * BYTES[cell.engine["dtype"]]
    memory = psutil.virtual_memory().total
    if needed <= 0.8 * memory:
        return None
    return (
        f"model={cell.model['name']} takes {needed / 1e9:.0f} GB in {cell.engine['dtype']}; this machine has {memory / 1e9:.0f} GB "
        "of memory and no CUDA device"
    )


def hours(cells: Iterable[Cell]) -> float | None:
    """Guess the hours of generation, one group at a time, by what conf/model calls typical; speculation is not counted on.

    None where a model's YAML (a user's own, say) or a benchmark's count does not tell.
    """
    seconds = 0.0
    for cell in cells:
        typical, items = cell.model.get("typical") or {}, n_items(cell)
        tok_s, output_tokens = typical.get("tok_s"), typical.get("output_tokens")
        if items is None or tok_s is None or output_tokens is None:
            return None
        seconds += items * min(output_tokens, cap_of(cell)) / tok_s
    return seconds / 3600


def n_items(cell: Cell) -> int | None:
    """Problems of a cell, before they are loaded; None where their count is not pinned and no limit is set."""
    known = [n for n in (cell.benchmark["source"]["count"], cell.benchmark["limit"]) if n is not None]
    return min(known, default=None)
