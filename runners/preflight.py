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
    if cell.engine["device"] != "cpu" or "parameters" not in cell.model:
        return None
    needed = cell.model["parameters"] * BYTES[cell.engine["dtype"]]
    memory = psutil.virtual_memory().total
    if needed <= 0.8 * memory:
        return None
    return (
        f"model={cell.model['name']} takes {needed / 1e9:.0f} GB in {cell.engine['dtype']}; this machine has {memory / 1e9:.0f} GB "
        "of memory and no CUDA device"
    )


def hours(cells: Iterable[Cell]) -> float | None:
    """Guess the hours of generation, one group at a time, by what conf/model calls typical; speculation is not counted on.

    None where a model's YAML, a user's own say, does not tell.
    """
    seconds = 0.0
    for cell in cells:
        if "typical" not in cell.model:
            return None
        tokens = min(cell.model["typical"]["output_tokens"], cap_of(cell))
        seconds += n_items(cell) * tokens / cell.model["typical"]["tok_s"]
    return seconds / 3600


def n_items(cell: Cell) -> int:
    """Problems of a cell, before they are loaded."""
    count = int(cell.benchmark["source"]["count"])
    return min(count, cell.benchmark["limit"] or count)
