"""Is one record worth a row? Detectors for what has gone wrong, unnoticed, in published speculative decoding benchmarks.

    flags(record, record.generations(), record.grades())      # [Flag("TRUNCATED", "3/164 outputs hit the cap", fatal=False)]

A fatal flag takes the row away; the others are printed below the table. docs/tables.md lists all codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.metrics import Line, committed_per_step, items, pooled_histogram, pooled_shapes, spans, throughput_tok_s
from analysis.records import Record, id_digits, regrade_command

TRUNCATED_ABOVE = 0.01
NO_ACCEPTANCE_BELOW = 1.005
ENOUGH_STEPS = 100
LENIENT_KAPPA = 0.3
COLD_BELOW = 0.6
BUSY_ABOVE = 0.1
ENDS_ALIKE = 0.9
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Flag:
    """One finding about a record."""

    code: str
    detail: str
    fatal: bool


def flags(record: Record, generations: Iterable[Line], grades: Iterable[Line] = ()) -> list[Flag]:
    """Return the flags of all detectors and what else the record says of itself, each code once."""
    return frame_flags(record, items(generations, grades))


def frame_flags(record: Record, frame: pd.DataFrame) -> list[Flag]:
    """The same from the cell's items (`analysis.metrics.items`)."""
    own = [Flag(flag["code"], flag["detail"], flag["fatal"]) for flag in record.validity["flags"]]
    if frame.empty:
        return [*own, Flag("NO_OUTPUTS", "generations.jsonl is missing or empty: the cell's data was lost", True)]
    found = [flag for detector in DETECTORS for flag in detector(record, frame)]
    # Detectors read the lines, so theirs say more.
    return found + [flag for flag in own if flag.code not in {other.code for other in found}]


def identity(record: Record, _: pd.DataFrame) -> Iterator[Flag]:
    """The folder, the id and the cell belong together."""
    digits = id_digits(record.cell)
    if not record.cell_id.endswith(f"-{digits}") or record.folder.name != record.cell_id:
        yield Flag(
            "STALE", f"folder {record.folder.name}, cell_id {record.cell_id}, but `cell` hashes to {digits}", True
        )


def completeness(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """Every item once, and graded."""
    n_items, n_failed = record.metrics["n_items"], record.metrics["n_failed"]
    if frame.index.has_duplicates or len(frame) + n_failed != n_items or n_items != record.cell["benchmark"]["n_items"]:
        detail = (
            f"{len(frame)} outputs ({frame.index.nunique()} different items) and {n_failed} failed, expected {n_items}"
        )
        yield Flag("ITEMS", detail, True)
    again = f"grade again: {regrade_command(record.folder.parent)}"
    if (ungraded := int(frame["correct"].isna().sum())) > 0:
        yield Flag("UNGRADED", f"{ungraded}/{len(frame)} outputs have no line in grades.jsonl; {again}", True)
    if (versions := frame["grader_version"].dropna()).nunique() > 1:
        yield Flag("GRADERS", f"graded by several versions: {sorted(versions.unique())}; {again}", True)
    if n_failed:
        yield Flag("FAILED_ITEMS", f"{n_failed}/{n_items} items have no output and count as wrong", False)
    if record.metrics["n_ungradable"]:
        yield Flag(
            "UNGRADABLE",
            f"{record.metrics['n_ungradable']}/{n_items} outputs could not be judged and count as wrong",
            False,
        )


def metrics_match(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """The record's metrics are what its lines give: one formula, one number everywhere."""
    metrics = record.metrics
    expected = {
        "output_tokens": int(frame["output_tokens"].sum()),
        "prompt_tokens": int(frame["prompt_tokens"].sum()),
        "n_truncated": int((frame["finish_reason"] == "length").sum()),
        "accuracy": float(frame["correct"].eq(True).sum()) / record.cell["benchmark"]["n_items"],
        "throughput_tok_s": throughput_tok_s(frame, record.engine["concurrency"]),
    }
    if record.algorithm and (steps := frame["verify_steps"].sum()):
        expected["tau"] = expected["output_tokens"] / float(steps)
    wrong = [
        f"{name}: {metrics[name]} in the record, {value} from its lines"
        for name, value in expected.items()
        if metrics[name] is None or not math.isclose(metrics[name], value, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    ]
    if wrong:
        yield Flag("METRICS", "; ".join(wrong), True)


def counters(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """Counts of the engine and of the plugin fit together and never run backwards."""
    checks = {
        "output_tokens is not the number of ids": frame["n_ids"] != frame["output_tokens"],
        "latency_s is not above 0": frame["latency_s"] <= 0,
        "more verify steps than tokens made by them": frame["verify_steps"]
        > frame["output_tokens"] - frame["by_prefill"],
        "1 + num_retractions + committed is not output_tokens": frame["committed"].notna()
        & (frame["committed"] + frame["by_prefill"] != frame["output_tokens"]),
        "committed is below steps": frame["committed"] < frame["steps"],
        "accepted is above committed": frame["accepted"] > frame["committed"],
        "promotions above accepted": frame["promotions"] > frame["accepted"],
        "a count is negative": frame[["output_tokens", "verify_steps", "steps", "committed", "accepted", "promotions"]]
        .lt(0)
        .any(axis=1),
        "trace is not as long as steps": frame["trace_steps"].notna() & (frame["trace_steps"] != frame["steps"]),
        "steps per shape do not sum to steps": frame["steps_per_shape"].notna()
        & (
            frame["steps_per_shape"].map(lambda shapes: sum(shapes.values()) if isinstance(shapes, dict) else 0)
            != frame["steps"]
        ),
    }
    wrong = [f"{text} ({int(mask.sum())} items)" for text, mask in checks.items() if mask.any()]
    if record.engine["concurrency"] == 1 and overlapping(frame):
        wrong.append(f"requests overlap at concurrency 1 ({overlapping(frame)} times)")
    if wrong:
        yield Flag("COUNTERS", "; ".join(wrong), True)


def overlapping(frame: pd.DataFrame) -> int:
    """How many requests began, on one server, before the one before had ended (with 50 ms grace: clocks are rounded)."""
    begins, ends = spans(frame)
    # By time, not by item: a request that failed once is answered after its successors.
    timed = pd.DataFrame({"server": frame["server"], "begin": begins, "end": ends}).sort_values("begin", kind="stable")
    last_end = timed.groupby("server")["end"].shift()
    return int((timed["begin"] < last_end - pd.Timedelta(milliseconds=50)).sum())


def speculation(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """Speculation happened, and accepted no more than was drafted."""
    if record.algorithm is None:
        if frame["verify_steps"].notna().any():
            yield Flag("SPECULATING_VANILLA", "vanilla reports verify steps, so it is no baseline", True)
        return
    long = frame[frame["output_tokens"] > 1]
    if long["verify_steps"].fillna(0).eq(0).any():
        yield Flag(
            "SPECULATION_OFF",
            f"{int(long['verify_steps'].fillna(0).eq(0).sum())}/{len(frame)} outputs without a verify step",
            True,
        )
        return
    per_step = committed_per_step(frame)
    if per_step < NO_ACCEPTANCE_BELOW:
        yield Flag("NO_ACCEPTANCE", f"{per_step:.3f} tokens a verify step: drafts are (almost) never accepted", True)
    deepest = max([shape[0] for shape in pooled_shapes(frame)] or [record.shape[0] if record.shape else 0])
    depths = pooled_histogram(frame)
    if deepest and (per_step > deepest + 1 or max(depths, default=0) > deepest):
        detail = f"{per_step:.2f} tokens a step, up to {max(depths, default=0)} drafts accepted, but at most {deepest} drafts deep"
        yield Flag("ACCEPT_RATE", f"{detail}: a token was counted twice", True)


def method_active(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """A dynamic policy changes shapes, a lenient margin promotes, and the rule is the one asked for."""
    if record.algorithm != "ADAPTIVESPEC":
        return
    steps = frame["steps"].sum()
    if frame["steps"].isna().any():
        yield Flag(
            "PLUGIN_OFF", f"{int(frame['steps'].isna().sum())}/{len(frame)} outputs were not served by the plugin", True
        )
    if record.cell["trace"] and (lost := int(frame["trace_steps"].isna().sum())):
        yield Flag("TRACE_MISSING", f"{lost}/{len(frame)} outputs have no trace though trace=true", False)
    served = set(frame["rule"].dropna())
    if served - {record.rule}:
        yield Flag("RULE", f"asked for {record.rule}, served with {sorted(served)}", True)
    shapes = pooled_shapes(frame)
    if record.tree.get("policy") != "static" and len(shapes) == 1:
        yield Flag(
            "ONE_SHAPE",
            f"policy {record.tree.get('policy')} chose {next(iter(shapes))} in all {steps:.0f} steps",
            steps >= ENOUGH_STEPS,
        )
    if record.rule == "margin" and (record.kappa or 1.0) <= LENIENT_KAPPA and frame["promotions"].sum() == 0:
        yield Flag(
            "NO_PROMOTION", f"kappa={record.kappa:g} promoted nothing in {steps:.0f} steps", steps >= ENOUGH_STEPS
        )
    if record.rule == "strict" and frame["promotions"].sum() > 0:
        yield Flag("PROMOTED_STRICT", f"rule strict promoted {frame['promotions'].sum():.0f} tokens", True)


def endings(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """Outputs end at the cap or at the first end of text."""
    cut = frame["finish_reason"] == "length"
    if cut.sum() > TRUNCATED_ABOVE * len(frame):
        right = frame["correct"].eq(True)
        yield Flag(
            "TRUNCATED",
            f"{cut.sum()}/{len(frame)} outputs hit the cap of {record.cell['benchmark']['max_new_tokens']}; right: "
            f"{(right & cut).sum()}/{cut.sum()} of these, {(right & ~cut).sum()}/{(~cut).sum()} of the complete ones",
            False,
        )
    stopped = frame[frame["finish_reason"] == "stop"]
    if record.cell["benchmark"]["stop"] or stopped.empty:
        return
    shares = stopped["last_id"].value_counts(normalize=True)
    ended = stopped[(stopped["last_id"] == shares.index[0]) & stopped["early_end"]]
    if shares.iloc[0] >= ENDS_ALIKE and len(ended):
        yield Flag(
            "AFTER_END",
            f"{len(ended)}/{len(frame)} outputs go on after the end of text (id {shares.index[0]:.0f})",
            True,
        )


def cold_start(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """A server's first measured request is as fast as the rest, else warm-up was too short."""
    speed = frame["output_tokens"] / frame["latency_s"]
    for server, group in speed.groupby(frame["server"], sort=False):
        rest = group.iloc[1:].median() if len(group) > 2 else None
        if rest and group.iloc[0] < COLD_BELOW * rest:
            detail = f"first request after start {server}: {group.iloc[0]:.1f} tok/s, median of the rest {rest:.1f}"
            yield Flag("COLD_START", f"{detail}; raise engine.warmup (now {record.engine['warmup']})", False)
            return


def cache_states(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """Every prompt met a cold prefix cache: a warm one answers sooner, and may answer otherwise."""
    cached = frame["cached_tokens"].astype(float)  # NaN where the engine does not tell
    whole = frame["prompt_tokens"] - 2  # the last token is always computed; a draft's cache lags one behind
    warm = cached >= whole.clip(lower=1) if record.engine["radix_cache"] else cached > 0
    if warm.any():
        yield Flag(
            "WARM_CACHE", f"{warm.sum()}/{len(frame)} prompts were in the prefix cache already, the others cold", True
        )


def disturbed(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """The machine was ours while it measured, and at its full clock."""
    others = frame["others_cores"].astype(float).median()  # NaN where it was not sampled
    cores = record.provenance["machine"]["cores"]
    if others > BUSY_ABOVE * cores:
        yield Flag("BUSY", f"other processes kept {others:.1f} of {cores} cores busy (median over requests)", False)
    if (throttled := int(frame["gpu_throttled"].eq(True).sum())) > 0:
        yield Flag("THROTTLED", f"the GPU was slowed by heat or power at {throttled}/{len(frame)} requests", False)


def empty_programs(record: Record, frame: pd.DataFrame) -> Iterator[Flag]:
    """No program whose functions do nothing was graded right: a grader that never calls the tests passes them."""
    if (wrong := int(frame["empty_program"].eq(True).sum())) > 0:
        yield Flag("EMPTY_PROGRAM", f"{wrong}/{len(frame)} programs of `pass` bodies were graded correct", True)


DETECTORS = (
    identity,
    completeness,
    metrics_match,
    counters,
    speculation,
    method_active,
    endings,
    cold_start,
    cache_states,
    disturbed,
    empty_programs,
)
