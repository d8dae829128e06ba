"""The page of a check: check.json holds all of it, check.md shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Data = Mapping[str, Any]
SCHEMA = 1


def write(folder: Path, document: Data) -> None:
    """Write both files, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("check.json", json.dumps(document, indent=1) + "\n"), ("check.md", render(document))):
        scratch = folder / f".{name}.part"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(folder / name)


def render(document: Data) -> str:
    """The whole page in Markdown."""
    stages = document["stages"]
    worst = "FAILED" if any(stage["status"] == "failed" for stage in stages) else "passed"
    verdict = f"{worst}{'' if document['complete'] else ' so far (cut short, or still running)'}"
    lines = [
        f"# GPU check: {verdict}",
        "",
        f"`{document['command']}`, {document['started_at']}. Random weights: speeds are real, texts and acceptance are not.",
        "",
        *table(
            ("stage", "model", "status", "s"),
            [(stage["name"], stage["model"] or "", stage["status"], f"{stage['seconds']:.1f}") for stage in stages],
        ),
    ]
    for stage in stages:
        lines += section(stage)
    return "\n".join(lines).rstrip() + "\n"


def section(stage: Data) -> list[str]:
    """What one stage found; nothing for those with nothing to show."""
    shown = SECTIONS.get(stage["name"], nothing)(stage["data"]) if stage["data"] else []
    if not shown and not stage["problems"]:
        return []
    model = f" ({stage['model']})" if stage["model"] else ""
    problems = [f"- {stage['status']}: {problem}" for problem in stage["problems"]]
    return ["", f"## {stage['name'].capitalize()}{model}", "", *problems, *([""] if problems else []), *shown]


def nothing(_: Data) -> list[str]:
    """For stages that are told by their status alone."""
    return []


def show_machine(data: Data) -> list[str]:
    """One line each."""
    gpu = ", ".join(data["gpu"]) or "no GPU"
    room = f", {data['gpu_free_gib']:.0f} of {data['gpu_total_gib']:.0f} GiB free" if "gpu_free_gib" in data else ""
    packages = ", ".join(f"{name} {version}" for name, version in data["packages"].items())
    return [
        f"- {gpu} (driver {data['driver']}, CUDA {data['cuda']}{room}); {data['cpu']}, {data['cores']} cores",
        f"- {packages}",
        f"- commit {data['code']['git_sha']}{' with changes' if data['code']['git_dirty'] else ''}",
    ]


def show_rules(data: Data) -> list[str]:
    """Counts."""
    return [
        f"{data['trees']} random trees, {data['accepted']} drafts accepted, {data['promoted']} promoted, {len(data['wrong'])} walks "
        "that differ between the device (batched) and the CPU (one by one)."
    ]


def show_shapes(told: Sequence[Data]) -> list[str]:
    """Graphs, time and memory by shape."""
    rows = [
        (
            shape(one["shape"]),
            *("yes" if one[name] else "no" for name in ("draft_graph", "verify_graph", "extend_graph")),
            number(one["build_s"], 2),
            number(one["memory_gib"], 2),
        )
        for one in told
    ]
    return table(("shape", "draft graph", "verify graph", "extend graph", "build s", "GiB"), rows)


def show_graphs(data: Data) -> list[str]:
    """Shapes, then the engine's own lines."""
    sums = [sum(one[name] or 0 for one in data["shapes"]) for name in ("build_s", "memory_gib")]
    total = f"All but the start-up shape: {sums[0]:.1f} s, {sums[1]:.2f} GiB."
    return [*show_shapes(data["shapes"]), "", total, "", *(f"    {line}" for line in data["captures"])]


def show_swap(data: Data) -> list[str]:
    """Shapes, and how often each was used."""
    totals = data["totals"]
    used = ", ".join(f"({name}) {count}" for name, count in totals["steps_per_shape"].items())
    return [*show_shapes(data["graphs"]), "", f"Steps by shape: {used}; {totals['accepted']} drafts accepted."]


def strict_row(name: str, found: Data) -> tuple[str, ...]:
    """One comparison with vanilla."""
    tokens = f"{found['outputs']} x {found['tokens_each']}"
    return (
        name,
        tokens,
        str(len(found["near_ties"])),
        str(len(found["violations"])),
        number(found["committed_per_step"], 2),
    )


STRICT_COLUMNS = ("strict against vanilla", "tokens", "near-ties", "violations", "tokens a step")


def show_lossless(data: Data) -> list[str]:
    """Both ways of sending."""
    rows = [strict_row(name, data[name]) for name in ("one by one", "all at once")]
    note = f"A near-tie: the target's two tokens there lie less than {data['near_tie_nats']} nats apart."
    return [*table(STRICT_COLUMNS, rows), "", note]


def show_margin(data: Data) -> list[str]:
    """Counts."""
    return [
        f"{data['outputs']} x {data['tokens_each']} tokens at kappa {data['kappa']}: {data['promotions']} promotions, "
        f"{len(data['wrong'])} tokens that the rule does not explain; traced margins are within {data['largest_margin_error_nats']:.2g} nats of "
        f"the target's own; {data['committed_per_step']:.2f} tokens a step."
    ]


def show_costs(data: Data) -> list[str]:
    """Milliseconds by shape and batch size, and what follows."""
    taus = list(next((row["speedup_at_tau"] for row in data["rows"] if "speedup_at_tau" in row), {}))
    columns = ("batch", "shape", "steps", "draft ms", "verify ms", "extend ms", "step ms", "in vanilla steps")
    rows = [
        (
            str(row["batch"]),
            shape(row["shape"]) if row["shape"] else "vanilla",
            str(row["steps"]),
            *(number(row.get(name), 2) for name in ("draft_ms", "verify_ms", "extend_ms", "step_ms")),
            number(row.get("vanilla_steps"), 2),
            *(number(row.get("speedup_at_tau", {}).get(tau), 2) for tau in taus),
        )
        for row in data["rows"]
    ]
    note = "Medians. `in vanilla steps` is also the tokens a step that break even; then the speedups predicted at so many tokens a step."
    return [*table((*columns, *(f"x at {tau}" for tau in taus)), rows), "", note]


def show_arms(data: Data) -> list[str]:
    """Throughput by batch size."""
    arms = list(data["batches"][0]["tok_s"])
    has_ratio = "static_over_eagle3" in data["batches"][0]
    columns = ("batch", *(f"{arm} tok/s" for arm in arms), *(f"{arm} / vanilla" for arm in arms[1:]))
    rows = [
        (
            str(line["batch"]),
            *(number(line["tok_s"][arm], 1) for arm in arms),
            *(number(line["over_vanilla"][arm], 3) for arm in arms[1:]),
            *([number(line["static_over_eagle3"], 3)] if has_ratio else []),
        )
        for line in data["batches"]
    ]
    shown = table((*columns, *(["static / eagle3"] if has_ratio else [])), rows)
    strict = [strict_row(name, found) for name, found in data.items() if name.endswith("against vanilla")]
    if strict:
        shown += ["", *table(STRICT_COLUMNS, strict)]
    else:
        shown += [
            "",
            "ADAPTIVESPEC has no row: it turns overlap scheduling off, because the next shape depends on the last step.",
        ]
    return shown


def show_end(data: Data) -> list[str]:
    """How long each server took to start."""
    return table(
        ("server", "ready after s"), [(start["kind"], number(start["ready_s"], 1)) for start in data["starts"]]
    )


SECTIONS: dict[str, Callable[[Data], list[str]]] = {
    "machine": show_machine,
    "rules": show_rules,
    "swap once": show_swap,
    "graphs": show_graphs,
    "lossless": show_lossless,
    "margin": show_margin,
    "costs": show_costs,
    "arms": show_arms,
    "overlap": show_arms,
    "end": show_end,
}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def number(value: float | None, digits: int) -> str:
    """The number, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def shape(triplet: Sequence[int]) -> str:
    """(3,1,4)."""
    return f"({','.join(map(str, triplet))})"
