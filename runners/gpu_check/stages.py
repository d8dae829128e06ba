"""The stages of the check, the most telling first. A stage returns its data and its problems; it fails where there are any.

for stage in plan(size, on_cuda): ...
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from runners.gpu_check import compare, models
from runners.gpu_check.servers import Served, Servers, median_costs
from runners.plan import rotate
from runners.provenance import describe_code, describe_machine, describe_packages

Data = dict[str, Any]
Outcome = tuple[Data, list[str]]

SIZES = {
    "tiny": ("tiny",),
    "tiny_qwen3": ("tiny_qwen3",),
    "llama31_8b": ("llama31_8b",),
    "qwen3_8b": ("qwen3_8b",),
    "8b": ("llama31_8b", "qwen3_8b"),
}
TAUS = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0)
OVERLAPPING = ("vanilla_overlap", "eagle3_overlap")


@dataclass(frozen=True)
class Load:
    """How much is asked of the servers."""

    batches: tuple[int, ...]
    outputs: int
    """Prompts of the comparisons."""
    tokens: int
    """Of each of their outputs."""
    cost_tokens: int
    """Of each output whose steps are timed."""
    arm_tokens: int
    """Of each output of the compared arms."""
    rounds: int
    prompt_tokens: int = 32


LOADS = {"cuda": Load((1, 8, 32), 8, 128, 384, 192, 3), "cpu": Load((1, 2, 4), 2, 40, 48, 32, 2)}


@dataclass
class Bench:
    """What the stages work with."""

    engine: Mapping[str, Any]
    """`conf/engine`, resolved."""
    load: Load
    servers: Servers
    folder: Path
    """Where the models are made."""
    near_tie_nats: float
    pairs: dict[str, models.Pair] = field(default_factory=dict)

    @property
    def on_cuda(self) -> bool:
        """Whether there are graphs, and room questions."""
        return bool(self.engine["device"] == "cuda")

    def prompts(self, model: str, count: int, seed: int = 0) -> list[list[int]]:
        """Random prompts of tokens that the model knows what follows."""
        random, known = torch.Generator().manual_seed(seed), self.pairs[model].tokens
        places = torch.randint(0, len(known), (count, self.load.prompt_tokens), generator=random)
        return [[known[place] for place in row] for row in places.tolist()]


@dataclass(frozen=True)
class Stage:
    """One part of the check."""

    name: str
    model: str | None
    run: Callable[[Bench], Outcome]
    needs: tuple[str, ...] = ()
    """Names of stages of the same model without which this one is skipped; they may have failed if they left what is needed."""

    @property
    def title(self) -> str:
        """Name and model."""
        return f"{self.name} ({self.model})" if self.model else self.name


def plan(size: str, on_cuda: bool) -> Iterator[Stage]:
    """All stages in order."""
    yield Stage("machine", None, machine)
    yield Stage("rules", None, rules)
    first, *others = SIZES[size]
    quick = "tiny" if on_cuda else first
    yield Stage("model", quick, lambda bench: make_model(bench, quick))
    yield Stage("swap once", quick, lambda bench: swap_once(bench, quick), ("model",))
    for model in (first, *others):
        yield from for_model(model, made=model == quick, arms=model == first, on_cuda=on_cuda)


def for_model(model: str, made: bool, arms: bool, on_cuda: bool) -> Iterator[Stage]:
    """The stages of one model; the arms are compared on the first one only."""

    def stage(name: str, run: Callable[[Bench, str], Outcome], *needs: str) -> Stage:
        return Stage(name, model, lambda bench: run(bench, model), needs)

    if not made:
        yield stage("model", make_model)
    yield stage("graphs", graphs, "model")
    yield stage("lossless", lossless, "graphs")
    yield stage("margin", margin, "graphs")
    yield stage("costs", costs, "graphs")
    if arms:
        yield stage("arms", compare_arms, "model")
        if on_cuda:
            yield stage("overlap", overlap, "model")
    yield stage("end", end)


def machine(bench: Bench) -> Outcome:
    """What this runs on; and that torch sees the device."""
    data = {**describe_machine(), "packages": describe_packages(), "code": describe_code(), "cuda": torch.version.cuda}
    data.pop("hostname_sha256")
    if bench.on_cuda:
        free, total = torch.cuda.mem_get_info()
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        data |= {"gpu_free_gib": free / 2**30, "gpu_total_gib": total / 2**30, "capability": capability}
    return data, []


def rules(bench: Bench) -> Outcome:
    """The accept rules on the device against the CPU."""
    data = compare.rules_on(bench.engine["device"])
    return data, data["wrong"][:5]


def make_model(bench: Bench, model: str) -> Outcome:
    """Write target and drafter."""
    begin_s = time.perf_counter()
    shape = models.SHAPES[model]
    dtype = getattr(torch, bench.engine["dtype"])
    bench.pairs[model] = models.make(shape, bench.folder, bench.engine["device"], dtype)
    if bench.on_cuda:
        torch.cuda.empty_cache()
    return {"weights_gib": shape.weights_gib, "made_s": time.perf_counter() - begin_s}, []


def swap_once(bench: Bench, model: str) -> Outcome:
    """Two shapes, captured and swapped: the least that the plugin must do."""
    bench.servers.start(bench.pairs[model], ["two_shapes"])
    try:
        served = bench.servers["two_shapes"]
        told = served.plugin["graphs"]
        answer = served.generate(bench.prompts(model, 1)[0], bench.load.tokens, compare.STRICT)
        totals = answer["meta_info"]["adaptivespec"]
        problems = missing_graphs(bench, told)
        if len(totals["steps_per_shape"]) < len(told):
            problems.append(f"only {list(totals['steps_per_shape'])} were used")
        if not totals["accepted"]:
            problems.append("no draft was accepted: drafter and target do not work together on this device")
        return {"graphs": told, "totals": totals}, problems
    finally:
        bench.servers.stop("two_shapes")


def graphs(bench: Bench, model: str) -> Outcome:
    """Start vanilla and the plugin with every shape; which graphs were captured, how long it took, what memory."""
    bench.servers.start(bench.pairs[model], ["vanilla", "every_shape"])
    served = bench.servers["every_shape"]
    told = served.plugin["graphs"]
    # Time stamps and worker names stand before.
    captures = [
        line[line.index("Capture") :] for line in served.server.lines() if "Capture" in line and "graph end" in line
    ]
    return {"shapes": told, "captures": captures}, missing_graphs(bench, told)


def missing_graphs(bench: Bench, told: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name what has no graph although it should."""
    if not bench.engine["cuda_graph"]:
        return []
    names = ("draft_graph", "verify_graph", "extend_graph")
    return [f"shape {one['shape']} has no {name}" for one in told for name in names if not one[name]]


def lossless(bench: Bench, model: str) -> Outcome:
    """Strict requests under a swap at every step, one by one and all at once, against vanilla."""
    vanilla, served = bench.servers["vanilla"], bench.servers["every_shape"]
    prompts = bench.prompts(model, bench.load.outputs)
    expected = [vanilla.generate(prompt, bench.load.tokens)["output_ids"] for prompt in prompts]
    data, problems = {}, []
    for together, name in ((False, "one by one"), (True, "all at once")):
        found = compare.strict_against(vanilla, served, prompts, expected, bench.near_tie_nats, together, True)
        data[name] = found
        problems += [f"{name}: {violation}" for violation in found["violations"]]
    shapes = {",".join(map(str, shape)) for shape in served.plugin["shapes"]}
    unused = shapes - set(data["one by one"]["steps_per_shape"])
    if unused:
        problems.append(f"shapes {sorted(unused)} were never used")
    return {"near_tie_nats": bench.near_tie_nats, **data}, problems


def margin(bench: Bench, model: str) -> Outcome:
    """Lossy requests under a swap at every step: each token is the target's best one or a promotion that the rule allows."""
    vanilla, served = bench.servers["vanilla"], bench.servers["every_shape"]
    prompts = bench.prompts(model, bench.load.outputs, seed=1)
    data = compare.margin_against(vanilla, served, prompts, bench.load.tokens, bench.near_tie_nats)
    return data, data["wrong"][:5] + ([] if data["promotions"] else ["nothing was promoted, so nothing is proved"])


def costs(bench: Bench, model: str) -> Outcome:
    """Median time of a step by shape and batch size, vanilla's, and the speedup that follows for a given acceptance."""
    rows: list[Data] = []
    for batch in bench.load.batches:
        prompts = bench.prompts(model, batch, seed=2)
        for kind in ("vanilla", "every_shape"):
            served = bench.servers[kind]
            before = len(served.steps())
            served.batch(prompts, bench.load.cost_tokens, compare.STRICT if kind == "every_shape" else None)
            rows += list(median_costs(served.steps()[before:], batch))
    vanilla_ms = {row["batch"]: row["step_ms"] for row in rows if row["shape"] is None}
    for row in rows:
        if row["shape"] and row["batch"] in vanilla_ms:
            row |= predicted(row, vanilla_ms[row["batch"]])
    problems = []
    if bench.engine["cuda_graph"]:
        eager = sum(row["steps"] - row["graph_replays"] for row in rows)
        problems += [f"{eager} steps did not replay the target's graph"] if eager else []
    missing = [batch for batch in bench.load.batches if batch not in vanilla_ms]
    if missing:
        problems.append(f"no vanilla step of batch size {missing} was timed")
    return {"rows": rows}, problems


def predicted(row: Mapping[str, Any], vanilla_ms: float) -> Data:
    """Speedup over vanilla at `tau` tokens a step (null beyond what the shape can yield), and the tau that breaks even."""
    cost = row["step_ms"] / vanilla_ms
    speedups = {str(tau): tau / cost if tau <= row["shape"][0] + 1 else None for tau in TAUS}
    return {"vanilla_steps": cost, "speedup_at_tau": speedups}


def compare_arms(bench: Bench, model: str) -> Outcome:
    """The plugin's static (3,1,4) against SGLang's own EAGLE3 (3,1,4) and vanilla, interleaved; both against vanilla's output."""
    bench.servers.stop("every_shape")
    pair = bench.pairs[model]
    also = OVERLAPPING if bench.on_cuda and has_room(pair, 4) else ()
    bench.servers.start(pair, ["vanilla", "eagle3", "static", *also])
    data = interleaved(bench, model, ("vanilla", "eagle3", "static"))
    for batch in data["batches"]:
        batch["static_over_eagle3"] = median_ratio(batch, "static", "eagle3")
    prompts, vanilla = bench.prompts(model, 2, seed=4), bench.servers["vanilla"]
    expected = [vanilla.generate(prompt, bench.load.tokens)["output_ids"] for prompt in prompts]
    problems = []
    for kind in ("eagle3", "static"):
        found = compare.strict_against(
            vanilla, bench.servers[kind], prompts, expected, bench.near_tie_nats, together=False, named=False
        )
        data[f"{kind} against vanilla"] = found
        problems += [f"{kind}: {violation}" for violation in found["violations"]]
    return data, problems


def overlap(bench: Bench, model: str) -> Outcome:
    """Vanilla and SGLang's own EAGLE3 with overlap scheduling, beside vanilla without. The plugin runs without it always."""
    bench.servers.stop("eagle3", "static")
    bench.servers.start(bench.pairs[model], ["vanilla", *OVERLAPPING])
    return interleaved(bench, model, ("vanilla", *OVERLAPPING)), []


def has_room(pair: models.Pair, count: int) -> bool:
    """Whether so many more servers fit on the device: weights, a GiB or two of KV cache and graphs, and some to spare."""
    free_bytes, _ = torch.cuda.mem_get_info()
    return bool(count * (pair.shape.weights_gib + 8) * 2**30 < free_bytes)


def interleaved(bench: Bench, model: str, arms: Sequence[str]) -> Data:
    """Output tokens per second of each arm by batch size; the arms take turns and start in another order each round."""
    served: dict[str, Served] = {arm: bench.servers[arm] for arm in arms}
    batches = []
    for batch in bench.load.batches:
        prompts = bench.prompts(model, batch, seed=3)
        for one in served.values():
            one.batch(prompts, 16)
        rounds: dict[str, list[float]] = {arm: [] for arm in arms}
        for number in range(bench.load.rounds):
            for arm in rotate(tuple(arms), number):
                rounds[arm].append(served[arm].tokens_per_second(prompts, bench.load.arm_tokens))
        speeds = {arm: statistics.median(values) for arm, values in rounds.items()}
        line: Data = {"batch": batch, "tok_s": speeds, "rounds_tok_s": rounds}
        line["over_vanilla"] = {arm: median_ratio(line, arm, "vanilla") for arm in arms}
        batches.append(line)
    return {"tokens_each": bench.load.arm_tokens, "batches": batches}


def median_ratio(line: Mapping[str, Any], arm: str, base: str) -> float:
    """Median over rounds of the ratio of throughputs."""
    rounds = line["rounds_tok_s"]
    return float(statistics.median(ours / theirs for ours, theirs in zip(rounds[arm], rounds[base], strict=True)))


def end(bench: Bench, model: str) -> Outcome:
    """Take this model's servers down."""
    bench.servers.stop_all()
    return {"starts": [start for start in bench.servers.started if start["model"] == model]}, []
