"""Is a strict arm's output vanilla's, token by token? If not: where it first differs, and whether that was a near-tie.

    python -m analysis.lossless --results results/runs

Whole outputs are compared, never a prefix of them. A pair that differs in anything but the method gets no verdict. Gaps between
the target's two best tokens come from `lossless.jsonl` (docs/data.md); without one, a divergence is of unknown kind.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from analysis import configured
from analysis.compare import differences
from analysis.records import Record, load, read_lines
from analysis.render import Grid, render

FLOAT32_TIE_NATS = 0.001  # logits near 20 are 0.000002 apart; sums over some thousand terms move by tens of that


@dataclass(frozen=True)
class Difference:
    """One item whose outputs are not the same."""

    item: str
    position: int | None
    """First differing output token; None where an arm lacks the item."""
    kind: str
    """`near-tie`, `violation`, `unknown` or `missing`."""
    detail: str


@dataclass(frozen=True)
class Verdict:
    """What holds between a strict arm and its vanilla."""

    word: str
    """`identical`, `near-ties only`, `violation`, `unknown` or `refused`."""
    n_items: int
    differing: tuple[Difference, ...] = ()
    reason: str = ""


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Return the first position where two outputs differ (the shorter one's end counts), None for equal ones."""
    return next((place for place, pair in enumerate(zip_longest(ours, theirs)) if pair[0] != pair[1]), None)


def compare_outputs(
    ours: Mapping[str, Sequence[int]], theirs: Mapping[str, Sequence[int]], gaps: Mapping[tuple[str, int], float], near_tie_nats: float
) -> Verdict:  # fmt: skip
    """Compare outputs by item; `gaps` has the target's top-2 gap in nats by (item, position)."""
    found = []
    for item in dict.fromkeys([*ours, *theirs]):
        if item not in ours or item not in theirs:
            found.append(Difference(item, None, "missing", f"only in {'the arm' if item in ours else 'vanilla'}"))
            continue
        position = first_difference(ours[item], theirs[item])
        if position is not None:
            found.append(
                classify(
                    item, position, (len(ours[item]), len(theirs[item])), gaps.get((item, position)), near_tie_nats
                )
            )
    kinds = {difference.kind for difference in found}
    word = next(
        (name for name in ("violation", "missing", "unknown") if name in kinds),
        "near-ties only" if kinds else "identical",
    )
    return Verdict("violation" if word == "missing" else word, len({*ours, *theirs}), tuple(found))


def classify(item: str, position: int, lengths: tuple[int, int], gap: float | None, near_tie_nats: float) -> Difference:
    """Name a divergence by the gap between the target's two best tokens there."""
    length = f"DIFFERENT LENGTH {lengths[0]} against {lengths[1]}, " if lengths[0] != lengths[1] else ""
    if gap is None:
        return Difference(
            item, position, "unknown", f"{length}first at {position}; gap not measured (lossless.check=on)"
        )
    kind = "near-tie" if gap < near_tie_nats else "violation"
    return Difference(item, position, kind, f"{length}first at {position}; top-2 gap {gap:.5f} nats: {kind}")


def tolerance(record: Record, asked: float | None = None) -> float:
    """Top-2 gap in nats below which a divergence is a near-tie: the asked one, else the run's own, else conf's.

    Two bfloat16 logits are often equal or one step apart, so that rounding decides. In float32, whatever is asked, only
    what sums in another order may move: kernels for one row and for a tree's rows do not add in the same order.
    """
    if record.engine["dtype"] == "float32":
        return FLOAT32_TIE_NATS
    if asked is not None:
        return asked
    settings = record.provenance["config"].get("lossless") or configured.node("config")["lossless"]
    return float(settings["near_tie_nats"])


def judge(record: Record, vanilla: Record, near_tie_nats: float | None = None) -> Verdict:
    """Compare two records. Refused where they differ in anything but the method, or the arm is not strict."""
    if record.rule != "strict":
        return Verdict("refused", 0, reason=f"rule {record.rule} may change outputs")
    controlled = differences(record, vanilla)
    if controlled:
        return Verdict("refused", 0, reason="; ".join(controlled))
    ours, theirs = ({line["item"]: line["output_ids"] for line in one.generations()} for one in (record, vanilla))
    gaps = {(line["item"], line["position"]): line["gap_nats"] for line in read_lines(record.folder / "lossless.jsonl")}
    return compare_outputs(ours, theirs, gaps, tolerance(record, near_tie_nats))


def find_vanilla(record: Record, records: Sequence[Record]) -> Record | None:
    """Return the vanilla that is closest to a record: same model and benchmark, fewest differences."""
    alike = [
        other
        for other in records
        if other.algorithm is None and (other.model, other.benchmark) == (record.model, record.benchmark)
    ]
    return min(alike, key=lambda other: len(differences(record, other)), default=None)


def verdicts(
    records: Sequence[Record], cell_ids: Sequence[str] | None, near_tie_nats: float | None
) -> list[tuple[Record, Verdict]]:
    """Judge every strict speculative record, or those of `cell_ids`."""
    strict = [
        one
        for one in records
        if one.algorithm and one.rule == "strict" and (cell_ids is None or one.cell_id in cell_ids)
    ]
    found = []
    for record in strict:
        vanilla = find_vanilla(record, records)
        none = Verdict("refused", 0, reason=f"no vanilla of {record.model} on {record.benchmark}")
        found.append((record, judge(record, vanilla, near_tie_nats) if vanilla else none))
    return found


def table(found: Sequence[tuple[Record, Verdict]]) -> Grid:
    """One row per arm, and a note per differing item."""
    rows, notes = [], []
    for record, verdict in found:
        same = f"{verdict.n_items - len(verdict.differing)}/{verdict.n_items}" if verdict.word != "refused" else "-"
        rows.append(
            (
                record.label,
                record.model,
                record.benchmark,
                str(record.engine["dtype"]),
                same,
                f"{verdict.word} {verdict.reason}".rstrip(),
            )
        )
        notes += [f"{record.place}: {one.item}: {one.detail}" for one in verdict.differing]
    return Grid(
        "Lossless gate", ("method", "model", "benchmark", "dtype", "identical", "verdict"), tuple(rows), tuple(notes)
    )


def main(argv: list[str] | None = None) -> int:
    """Print the verdicts; exit status 1 where one is a violation or nothing could be judged."""
    parser = argparse.ArgumentParser(prog="python -m analysis.lossless", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results/runs"), metavar="DIR")
    parser.add_argument("--cells", help="only these cell ids, comma-separated")
    parser.add_argument(
        "--near-tie-nats",
        type=float,
        help="a divergence below this top-2 gap is a near-tie (in float32 always below 0.001); default: lossless.near_tie_nats of the run",
    )
    arguments = parser.parse_args(argv)
    try:
        records = load(arguments.results).records
    except FileNotFoundError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    found = verdicts(records, arguments.cells.split(",") if arguments.cells else None, arguments.near_tie_nats)
    if not found:
        print(
            f"Error: no strict speculative cell in {arguments.results}: run method=vanilla,eagle3 first",
            file=sys.stderr,
        )
        return 1
    print(render(table(found), "text"))
    return 1 if any(verdict.word in ("violation", "refused") for _, verdict in found) else 0


if __name__ == "__main__":
    sys.exit(main())
