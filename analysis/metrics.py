"""Every metric's one definition (METHOD: output throughput, tau, acceptance by depth, step cost), from a cell's lines.

    frame = items(record.generations(), record.grades())      # one row per item
    throughput_tok_s(frame), tau(frame)

Counts are the engine's token ids. The first output token of an item comes from the prefill (and one more for each
retraction, from the second prefill), the others from verify steps.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import pandas as pd

Line = Mapping[str, Any]
Shape = tuple[int, int, int]
GRADE_COLUMNS = ("item", "correct", "ungradable", "paper_correct", "grader_version", "empty_program")


def items(generations: Iterable[Line], grades: Iterable[Line] = ()) -> pd.DataFrame:
    """Return one row per item, indexed by it, in the cell's order; only what tables and detectors need stays in memory."""
    frame = pd.DataFrame([item_row(line) for line in generations])
    if frame.empty:
        return frame
    graded = pd.DataFrame([grade_row(line) for line in grades], columns=GRADE_COLUMNS).drop_duplicates("item")
    return frame.merge(graded, on="item", how="left").sort_values("index", kind="stable").set_index("item")


def grade_row(line: Line) -> tuple[Any, ...]:
    """Reduce one grade to what tables and detectors need."""
    empty = bool(line["correct"]) and is_empty_program(line.get("extracted"))
    return (line["item"], line["correct"], line["ungradable"], line["paper_correct"], line["grader_version"], empty)


def is_empty_program(text: Any) -> bool:
    """Whether a text is Python whose functions all do nothing (`pass`, `...`, a docstring)."""
    if not isinstance(text, str) or "def " not in text:
        return False
    try:
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return False
    return bool(functions) and all(does_nothing(statement) for function in functions for statement in function.body)


def does_nothing(statement: ast.stmt) -> bool:
    """`pass`, or an expression that is a constant."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def item_row(line: Line) -> dict[str, Any]:
    """Reduce one generation to numbers."""
    ids, totals, trace = line["output_ids"], line["adaptivespec"] or {}, line["trace"]
    machine = line.get("machine") or {}
    return {
        "item": line["item"],
        "index": line["index"],
        "prompt_sha256": line["prompt_sha256"],
        "prompt_tokens": line["prompt_tokens"],
        "cached_tokens": line.get("cached_tokens"),
        "output_tokens": line["output_tokens"],
        "n_ids": len(ids),
        "ids_sha256": hashlib.sha256(orjson.dumps(ids)).hexdigest(),
        "last_id": ids[-1] if ids else None,
        "early_end": bool(ids) and ids.index(ids[-1]) < len(ids) - 1,
        "finish_reason": line["finish_reason"],
        "latency_s": line["latency_s"],
        "started_at": line["started_at"],
        "server": line["server"],
        "others_cores": machine.get("others_cores"),
        "gpu_clock_mhz": machine.get("gpu_clock_mhz"),
        "gpu_throttled": machine.get("gpu_throttled"),
        # The first token is the prefill's, and one more for each retraction: absent from older lines.
        "by_prefill": 1 + line.get("num_retractions", 0),
        "verify_steps": line["verify_steps"],
        "histogram": line["accept_histogram"],
        "steps": totals.get("steps"),
        "committed": totals.get("committed"),
        "accepted": totals.get("accepted"),
        "promotions": totals.get("promotions"),
        "rule": totals.get("rule"),
        "steps_per_shape": totals.get("steps_per_shape"),
        "trace_steps": line.get("trace_steps") if trace is None else len(trace),
    }


def throughput_tok_s(frame: pd.DataFrame, concurrency: int) -> float:
    """Output tokens per second, prefill included: of request time at concurrency 1, of wall time above it."""
    seconds = float(frame["latency_s"].sum()) if concurrency == 1 else wall_seconds(frame)
    return float(frame["output_tokens"].sum()) / seconds


def wall_seconds(frame: pd.DataFrame) -> float:
    """Seconds from first request's start to last one's end, summed over server starts: a pause between two counts in neither."""
    begins, ends = spans(frame)
    servers = frame["server"]
    return float((ends.groupby(servers).max() - begins.groupby(servers).min()).dt.total_seconds().sum())


def spans(frame: pd.DataFrame) -> tuple[pd.Series[Any], pd.Series[Any]]:
    """When each request began and ended, in microseconds as a record's metrics count them."""
    begins = pd.to_datetime(frame["started_at"], utc=True, format="ISO8601")
    return begins, begins + pd.to_timedelta(frame["latency_s"].round(6), unit="s")


def tau(frame: pd.DataFrame) -> float:
    """Accept length as the engine reports it, bonus token included: output tokens / verify steps, a ratio of sums."""
    return float(frame["output_tokens"].sum() / frame["verify_steps"].sum())


def committed_per_step(frame: pd.DataFrame) -> float:
    """Exact tokens per verify step, bonus token included: the tokens of each item's prefills left out."""
    return float((frame["output_tokens"].sum() - frame["by_prefill"].sum()) / frame["verify_steps"].sum())


def accepted_per_step(frame: pd.DataFrame) -> float:
    """Accepted drafts per verify step, bonus token excluded."""
    return committed_per_step(frame) - 1.0


def histogram_of(accepted: Iterable[int]) -> dict[int, int]:
    """How many steps accepted 0, 1, 2, ... drafts."""
    return dict(sorted(Counter(accepted).items()))


def histogram_tau(histogram: Mapping[int, int]) -> float:
    """Mean accept length of a histogram of accepted drafts: each step adds its bonus token."""
    return sum((accepted + 1) * steps for accepted, steps in histogram.items()) / sum(histogram.values())


def pooled_histogram(frame: pd.DataFrame) -> dict[int, int]:
    """The engine's histograms of all items together."""
    total: Counter[int] = Counter()
    for histogram in frame["histogram"].dropna():
        total.update({depth: count for depth, count in enumerate(histogram) if count})
    return dict(sorted(total.items()))


def acceptance_by_depth(histogram: Mapping[int, int]) -> dict[int, float]:
    """Share of verify steps in which at least 1, 2, 3, ... drafts were accepted."""
    steps = sum(histogram.values())
    deepest = max(histogram, default=0)
    return {
        depth: sum(n for accepted, n in histogram.items() if accepted >= depth) / steps
        for depth in range(1, deepest + 1)
    }


def parse_shape(text: str) -> Shape:
    """`7,1,8` -> (7, 1, 8)."""
    num_steps, topk, num_draft_tokens = (int(part) for part in text.split(","))
    return num_steps, topk, num_draft_tokens


def pooled_shapes(frame: pd.DataFrame) -> dict[Shape, int]:
    """Verify steps per tree shape, all items together; empty where the plugin does not serve."""
    total: Counter[str] = Counter()
    for shapes in frame["steps_per_shape"].dropna():
        total.update(shapes)
    return dict(sorted((parse_shape(text), count) for text, count in total.items()))


def drafted_tokens(steps_per_shape: Mapping[Shape, int]) -> int:
    """Drafts that were verified: each step verifies its shape's num_draft_tokens less the root."""
    return sum(count * (shape[2] - 1) for shape, count in steps_per_shape.items())


def step_cost(tau_value: float, speedup: float) -> float:
    """Cost of a verify step in units of a plain decoding step: speedup = tau / step cost."""
    return tau_value / speedup


def recovery_percent(accuracy: float, reference_accuracy: float) -> float:
    """Accuracy kept against eagle3 (3,1,4) strict, in per cent. Raises ZeroDivisionError where the reference has none."""
    return 100 * accuracy / reference_accuracy
