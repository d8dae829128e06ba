"""From a cell's generations and grades to the metrics of its record (defined in docs/data.md).

metrics = measure(generations, grades, concurrency=1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

Line = dict[str, Any]


def measure(generations: Sequence[Line], grades: Sequence[Line], n_items: int, concurrency: int) -> Line:
    """Return the metrics. `n_items` counts all items of the cell, with or without an output."""
    output_tokens = sum(line["output_tokens"] for line in generations)
    seconds = sum(line["latency_s"] for line in generations) if concurrency == 1 else wall_seconds(generations)
    # The first token of an output is the prefill's, and one more for each retraction: absent from older lines.
    by_prefill = sum(1 + line.get("num_retractions", 0) for line in generations)
    steps = [line["verify_steps"] for line in generations if line["verify_steps"] is not None]
    verify_steps = sum(steps) if steps else None
    totals = [line["adaptivespec"] for line in generations if line["adaptivespec"]]
    papers = [grade["paper_correct"] for grade in grades if grade["paper_correct"] is not None]
    return {
        "n_items": n_items,
        "n_failed": n_items - len(generations),
        "n_ungradable": sum(grade["ungradable"] for grade in grades),
        "n_truncated": sum(line["finish_reason"] == "length" for line in generations),
        "output_tokens": output_tokens,
        "prompt_tokens": sum(line["prompt_tokens"] for line in generations),
        "request_s": seconds,
        "throughput_tok_s": output_tokens / seconds if seconds else None,
        "verify_steps": verify_steps,
        "tau": output_tokens / verify_steps if verify_steps else None,
        "committed_per_step": (output_tokens - by_prefill) / verify_steps if verify_steps else None,
        "accuracy": sum(grade["correct"] for grade in grades) / n_items,
        "accuracy_paper": sum(papers) / n_items if papers else None,
        "promotions": sum(total["promotions"] for total in totals) if totals else None,
        "steps_per_shape": dict(sum((Counter(total["steps_per_shape"]) for total in totals), Counter()))
        if totals
        else None,
    }


def wall_seconds(generations: Sequence[Line]) -> float:
    """Seconds from first request's start to last one's end, summed over server starts: the denominator when requests overlap.

    A pause between two servers (a kill and a resume, a restart after a fault) is no time in which the engine was measured.
    """
    spans: dict[str, tuple[datetime, datetime]] = {}
    for line in generations:
        start = datetime.fromisoformat(line["started_at"])
        end = start + timedelta(seconds=line["latency_s"])
        first, last = spans.get(line["server"], (start, end))
        spans[line["server"]] = min(first, start), max(last, end)
    return sum((last - first).total_seconds() for first, last in spans.values())


def validity(metrics: Line, truncated_above: float = 0.01) -> Line:
    """Flag what a reader of this one record must know; comparisons between records are the analysis' concern."""
    flags = []
    if metrics["n_truncated"] > truncated_above * metrics["n_items"]:
        detail = f"{metrics['n_truncated']}/{metrics['n_items']} outputs hit the cap"
        flags.append({"code": "TRUNCATED", "detail": detail, "fatal": False})
    if metrics["n_failed"]:
        flags.append(
            {
                "code": "FAILED_ITEMS",
                "detail": f"{metrics['n_failed']}/{metrics['n_items']} items have no output",
                "fatal": False,
            }
        )
    if metrics["tau"] is not None and metrics["committed_per_step"] <= 1.0:
        detail = f"{metrics['committed_per_step']:.3f} tokens a step: no draft was ever accepted"
        flags.append({"code": "NO_ACCEPTANCE", "detail": detail, "fatal": True})
    return {"valid": not any(flag["fatal"] for flag in flags), "flags": flags}
