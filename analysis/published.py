"""The paper's own results (analysis/paper/*.csv), looked up, and a lint for figures out of line.

    python -m analysis.published        # cells of the paper whose speedup does not fit their tau

Tables 1, 3, 4, 5, 6, 7 and 8 are transcribed; Table 2 is means of Table 1 and is derived.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from analysis import configured
from analysis.metrics import step_cost

MODELS = {"llama31_8b": "Llama-3.1-8B", "qwen3_8b": "Qwen3-8B", "deepseek_r1_8b": "DeepSeek-R1-8B"}
BENCHMARKS = {"gsm8k": "GSM8K", "math500": "MATH-500", "humaneval": "HumanEval"}
METHODS = {
    "eagle3": "EAGLE-3",
    "talon": "TALON*",
    "dynamic": "AdaptiveSpec (Dynamic-only)",
    "fly": "FLy*",
    "lossy": "AdaptiveSpec (Lossy-only)",
    "combined": "AdaptiveSpec (Combined)",
}
STRICT_METHODS = ("eagle3", "talon", "dynamic")
GPU = "A100"
OUT_OF_LINE = 0.10


@cache
def rows(table: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of `table1` to `table8` as texts."""
    with (files("analysis") / "paper" / f"{table}.csv").open(encoding="utf-8") as stream:
        return tuple(csv.DictReader(stream))


def lookup(table: str, metric: str, **keys: str | float | None) -> float | None:
    """Return one published figure; None where the paper has none."""
    for row in rows(table):
        if all(matches(row.get(name), value) for name, value in keys.items()):
            return float(row[metric]) if row.get(metric) else None
    return None


def matches(text: str | None, value: str | float | None) -> bool:
    """Compare a text of the CSV with a key; numbers by value, None with anything."""
    return value is None or (text is not None and (float(text) == value if isinstance(value, float) else text == value))


def kappa(method: str, model: str, benchmark: str) -> float | None:
    """The margin threshold of Table 1's cell: Table 8's, outside the paper conf's; None for methods without one."""
    if method not in ("lossy", "combined"):
        return None
    found = lookup("table8", "kappa", method=method, model=model, benchmark=benchmark)
    return configured.per_cell("kappa", method, model, benchmark) if found is None else found


def d(method: str, model: str, benchmark: str) -> float | None:
    """The divisor of Table 1's cell: Table 7's, outside the paper conf's; None for methods without one."""
    if method not in ("dynamic", "combined"):
        return None
    if model not in MODELS or benchmark not in BENCHMARKS:
        return configured.per_cell("d", model, benchmark)
    (options,) = (row["options"] for row in rows("table7") if row["method"] == method)
    return float(dict(option.split("=") for option in options.split() if "=" in option)["d"])


def table2(model: str | None, method: str, metric: str) -> float | None:
    """Derive a figure of Table 2: a model's mean over benchmarks; for None the table's Average, of the rounded means as there."""
    if metric == "recovery" and method in STRICT_METHODS:
        return 100.0 if model is None or model in MODELS else None
    if model is None:
        parts = [table2(name, method, metric) for name in MODELS]
    else:
        chosen = [row for row in rows("table1") if (row["method"], row["model"]) == (method, model)]
        parts = [float(row[metric]) for row in chosen]
    usable = [part for part in parts if part is not None]
    return round(statistics.fmean(usable), 0 if metric == "recovery" else 2) if usable else None


@dataclass(frozen=True)
class Point:
    """One cell's speedup and tau."""

    group: str
    """What has one step cost: a method on a model."""
    name: str
    speedup: float
    tau: float

    @property
    def cost(self) -> float:
        """Step cost in plain decoding steps."""
        return step_cost(self.tau, self.speedup)


def lint(points: Iterable[Point]) -> list[str]:
    """Flag cells whose step cost is out of line: a shape's verify step costs the same whatever the benchmark."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    found = []
    for members in groups.values():
        usual = statistics.median(point.cost for point in members)
        found += [
            f"{point.name}: speedup {point.speedup:.2f} at tau {point.tau:.2f} is a step cost of {point.cost:.2f}, "
            f"{100 * (point.cost / usual - 1):+.0f} % from the usual {usual:.2f} of {point.group}"
            for point in members
            if len(members) > 2 and abs(point.cost / usual - 1) > OUT_OF_LINE
        ]
    return found


def points() -> list[Point]:
    """All cells of Tables 1, 3 and 4, each once."""
    found: dict[tuple[str, ...], Point] = {}
    for table, method in (("table1", None), ("table3", "dynamic"), ("table4", None)):
        for row in rows(table):
            name = method or row["method"]
            option = row.get("kappa") or row.get("d") or ""
            group = f"{METHODS[name]}, {MODELS[row['model']]}"
            label = (
                f"paper's {table.replace('table', 'Table ')}, {group}, {BENCHMARKS[row['benchmark']]} {option}".rstrip()
            )
            point = Point(group, label, float(row["speedup"]), float(row["tau"]))
            key = (group, row["benchmark"], row["speedup"], row["tau"])
            found.setdefault(key, point)
    return list(found.values())


if __name__ == "__main__":
    print("\n".join(lint(points())))
