"""Our figure beside the paper's: agrees, differs, or not comparable, because ...

verdict(figure, 2.43, "speedup", block)       # Verdict("agrees", "")
"""

from __future__ import annotations

from dataclasses import dataclass

from analysis import published
from analysis.arms import Figure, Missing
from analysis.blocks import Block

# The paper prints rounded figures.
ROUNDING = {"speedup": 0.005, "tau": 0.005, "recovery": 0.5}


@dataclass(frozen=True)
class Verdict:
    """`agrees`, `differs`, `not comparable` or `missing`, and why."""

    word: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}" if self.reason else self.word


def verdict(figure: Figure, paper: float, metric: str, block: Block) -> Verdict:
    """Hold a figure to the paper's. It agrees where the paper's, as rounded there, lies within our 95 % interval."""
    if isinstance(figure, Missing):
        return Verdict("missing", figure.reason)
    reasons = obstacles(metric, block)
    if reasons:
        return Verdict("not comparable", "; ".join(reasons))
    if figure.interval is None:
        return Verdict("not comparable", "too few items for an interval")
    low, high = figure.interval
    margin = ROUNDING[metric]
    return Verdict("agrees" if low - margin <= paper <= high + margin else "differs")


def obstacles(metric: str, block: Block) -> list[str]:
    """What, other than the code, could explain a difference from the paper."""
    record = block.record
    if record is None:
        return ["nothing was measured"]
    benchmark, engine = record.cell["benchmark"], record.engine
    found = []
    if benchmark["protocol"] != "paper":
        found.append(f"protocol {benchmark['protocol']}, not paper")
    if benchmark["limit"] is not None:
        found.append(f"{benchmark['limit']} items, not the full set")
    if (engine["dtype"], engine["concurrency"], engine["temperature"]) != ("bfloat16", 1, 0.0):
        found.append(f"{engine['dtype']}, concurrency {engine['concurrency']}, temperature {engine['temperature']}")
    gpus = record.provenance["machine"]["gpu"]
    if metric == "speedup" and not (gpus and all(published.GPU in name for name in gpus)):
        found.append(f"{', '.join(sorted(set(gpus))) or 'no GPU'}, not an {published.GPU}")
    return found
