"""The lossless gate: strict arms against vanilla, token by token; at each first divergence the target is asked for its top-2 gap.

    python run.py -m method=vanilla,eagle3 lossless.check=on engine.dtype=float32

Gaps go to `lossless.jsonl` in the strict arm's folder; `python -m analysis.lossless` tells near-ties from violations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from runners.group import FAULTS, GroupRunner, Outcome
from runners.resolve import Ready
from runners.server import Server

VANILLA: dict[str, Any] = {"name": "vanilla", "algorithm": None, "tree": None, "accept": None}


@dataclass(frozen=True)
class Divergence:
    """The first position where an arm's output differs from vanilla's (or is shorter or longer)."""

    item: str
    index: int
    position: int
    prefix: tuple[int, ...]
    """Output tokens before it, the same in both."""


def check(outcomes: Sequence[Outcome], runner: GroupRunner) -> tuple[list[str], list[str]]:
    """Compare all strict arms that have their vanilla among `outcomes` and write the gaps.

    Returns the ids of the arms compared, and why the gaps of some of them could not be measured.
    """
    measured = [outcome.ready for outcome in outcomes if outcome.ready is not None and outcome.record is not None]
    vanilla = {counterpart_key(ready): ready for ready in measured if not ready.cell.speculative}
    compared, failures = [], []
    for ready in measured:
        base = vanilla.get(counterpart_key(ready))
        if not ready.cell.speculative or ready.cell.method["accept"]["rule"] != "strict" or base is None:
            continue
        compared.append(ready.id)
        found = divergences(runner.folder(base).generations(), runner.folder(ready).generations())
        try:
            gaps = measure_gaps(base, found, runner) if found else []
        except FAULTS as error:
            failures.append(
                f"no gaps of {ready.cell.label}, the same command tries again: {type(error).__name__}: {error}"
            )
            continue
        runner.folder(ready).write("lossless.jsonl", "".join(json.dumps(gap) + "\n" for gap in gaps))
    return compared, failures


def counterpart_key(ready: Ready) -> str:
    """Equal for an arm and its vanilla."""
    return replace(ready.cell, method=VANILLA, trace=False).key


def divergences(base: Sequence[dict[str, Any]], arm: Sequence[dict[str, Any]]) -> list[Divergence]:
    """Return each item's first divergence; a shorter output diverges at its end."""
    by_item = {line["item"]: line for line in arm}
    found = []
    for line in base:
        other = by_item.get(line["item"])
        if other is None:
            continue
        pairs = enumerate(zip_longest(line["output_ids"], other["output_ids"]))
        position = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
        if position is not None:
            found.append(Divergence(line["item"], line["index"], position, tuple(line["output_ids"][:position])))
    return found


def measure_gaps(base: Ready, found: Sequence[Divergence], runner: GroupRunner) -> list[dict[str, Any]]:
    """Ask the target alone for the difference of its two best log-probabilities at each divergence, in nats."""
    with runner.start([base]) as server:
        return [{"item": one.item, "position": one.position, "gap_nats": top2_gap(server, base, one)} for one in found]


def top2_gap(server: Server, base: Ready, divergence: Divergence) -> float:
    """The target's top-2 gap in nats after the prompt and the common prefix."""
    body = {
        "input_ids": [*base.prompts[divergence.index].ids, *divergence.prefix],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    best, second = server.post("/generate", body, server.timeouts["request_s"])["meta_info"]["output_top_logprobs"][0][
        :2
    ]
    return float(best[0] - second[0])
