"""What must hold of outputs: strict ones are vanilla's own, and lossy ones differ only where the margin rule allows it.

expected = [servers["vanilla"].generate(prompt, 128)["output_ids"] for prompt in prompts]
found = strict_against(servers["vanilla"], servers["every_shape"], prompts, expected, 0.3, together=True, named=True)
found["violations"], found["near_ties"]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch

from adaptivespec.accept import Margin, Rule, Strict, Window, verify_batch, verify_tree
from runners.gpu_check.servers import MARGIN, Served

Prompts = Sequence[Sequence[int]]
STRICT = {"rule": "strict"}


def strict_against(
    vanilla: Served,
    served: Served,
    prompts: Prompts,
    expected: Prompts,
    near_tie_nats: float,
    together: bool,
    named: bool,
) -> dict[str, Any]:
    """Compare every output token with `expected`, vanilla's own outputs for the prompts.

    Where the two part, the target is asked how far the other token lies below its best: at less than `near_tie_nats` that
    is rounding, and the comparison goes on behind it, from vanilla's own text. `together` sends all prompts at once; `named`
    asks the plugin for the strict rule, else it is the server's own.
    """
    options = STRICT if named else None
    tokens = len(expected[0])
    first = served.batch(prompts, tokens, options) if together else [None] * len(prompts)
    totals: Counter[str] = Counter()
    shapes: Counter[str] = Counter()
    violations: list[dict[str, Any]] = []
    near_ties: list[dict[str, Any]] = []
    for prompt, theirs, answer in zip(prompts, expected, first, strict=True):
        start = 0
        while start < tokens:
            answer = answer or served.generate([*prompt, *theirs[:start]], tokens - start, options)
            count(answer, totals, shapes)
            ours, answer = answer["output_ids"], None
            place = first_difference(ours, theirs[start:])
            if place is None:
                break
            place += start
            *_, (own, best, best_logprob, second) = vanilla.logprobs(prompt, [*theirs[:place], ours[place - start]])
            # If ours is the best, vanilla's own is the second or worse.
            gap = best_logprob - (second if ours[place - start] == best else own)
            line = {"position": place, "token": ours[place - start], "expected": theirs[place], "best": best}
            (near_ties if gap < near_tie_nats else violations).append({**line, "gap_nats": gap})
            if violations:
                break
            start = place + 1
    return {
        "outputs": len(prompts), "tokens_each": tokens, "near_ties": near_ties, "violations": violations,
        "committed_per_step": totals["committed"] / totals["steps"] if totals["steps"] else None,
        "steps_per_shape": dict(shapes),
    }  # fmt: skip


def count(answer: Mapping[str, Any], totals: Counter[str], shapes: Counter[str]) -> None:
    """Add an answer's steps; the plugin's books must balance with the engine's. Raises ValueError where they do not."""
    meta = answer["meta_info"]
    steps = meta.get("spec_verify_ct", 0)
    totals["steps"] += steps
    totals["committed"] += meta["completion_tokens"] - 1
    told = meta.get("adaptivespec")
    if told is None:
        return
    made = 1 + meta.get("num_retractions", 0) + told["committed"]
    if made != meta["completion_tokens"] or told["steps"] != steps:
        raise ValueError(
            f"the plugin booked {told['steps']} steps and {made} tokens, the engine {steps} and {meta['completion_tokens']}"
        )
    shapes.update(told["steps_per_shape"])


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first position where two outputs differ, None for equal ones."""
    return next((place for place, pair in enumerate(zip_longest(ours, theirs)) if pair[0] != pair[1]), None)


def margin_against(
    vanilla: Served, served: Served, prompts: Prompts, tokens: int, near_tie_nats: float
) -> dict[str, Any]:
    """Ask the target about every token of a lossy output: its best token, or a traced promotion with the traced margin."""
    wrong: list[str] = []
    promotions, worst_nats = 0, 0.0
    totals: Counter[str] = Counter()
    for prompt in prompts:
        answer = served.generate(prompt, tokens, {**MARGIN, "trace": True})
        count(answer, totals, Counter())
        trace = answer["meta_info"]["adaptivespec_trace"]
        promoted = {one["position"]: one for step in trace for one in step["promoted"]}
        promotions += len(promoted)
        logprobs = vanilla.logprobs(prompt, answer["output_ids"])
        for position, (own, best, best_logprob, _) in enumerate(logprobs):
            one, ratio = promoted.get(position), own - best_logprob
            if one is None:
                if ratio < -near_tie_nats:
                    wrong.append(f"token {position} lies {-ratio:.3f} nats below {best} and no promotion is traced")
                continue
            difference = abs(math.log(one["margin"]) - ratio)
            worst_nats = max(worst_nats, difference)
            if difference > near_tie_nats or one["margin"] < MARGIN["kappa"]:
                wrong.append(
                    f"token {position}: promoted with margin {one['margin']:.3f}, the target says {math.exp(ratio):.3f}"
                )
    return {
        "outputs": len(prompts), "tokens_each": tokens, "kappa": MARGIN["kappa"], "promotions": promotions,
        "largest_margin_error_nats": worst_nats, "wrong": wrong,
        "committed_per_step": totals["committed"] / totals["steps"],
    }  # fmt: skip


RULES: dict[str, tuple[Rule, ...]] = {
    "tree": (Strict(), Margin(0.3), Margin(0.05, max_promotions=None)),
    "chain": (Strict(), Margin(0.3), Margin(0.05, max_promotions=None), Window(w=2, theta=0.1)),
}


def rules_on(device: str, trees: int = 60, nodes: int = 8, vocabulary: int = 2000) -> dict[str, Any]:
    """Walk random trees under all rules in batches on the device, and one by one on the CPU; they must agree."""
    random = torch.Generator().manual_seed(0)
    wrong, accepted, promoted = [], 0, 0
    for form in ("tree", "chain"):
        for dtype in (torch.float32, torch.bfloat16):
            # Few sharp logits, so that drafts match, miss and come close.
            logits = (3 * torch.randn(trees, nodes, vocabulary, generator=random)).to(dtype)
            parents = _parents(form, trees, nodes, random)
            choice = torch.randint(0, 3, (trees, nodes), generator=random)
            best = logits.topk(3, dim=-1).indices
            above = best.gather(1, parents.clamp(min=0)[:, :, None].expand(-1, -1, 3))
            tokens = above.gather(2, choice[:, :, None])[:, :, 0]
            rules = [RULES[form][index % len(RULES[form])] for index in range(trees)]
            batch = verify_batch(tokens.to(device), parents.to(device), logits.to(device), rules)
            reached, hits = batch.reached.cpu(), batch.promoted.cpu()
            for index, rule in enumerate(rules):
                alone = verify_tree(tokens[index], parents[index], logits[index], rule)
                ours = (_nodes(reached[index, 1:], 1), _nodes(hits[index], 0))
                accepted, promoted = accepted + len(alone.accepted), promoted + len(alone.promoted)
                if ours != (alone.accepted, alone.promoted):
                    wrong.append(
                        f"{form} {index}, {dtype}, {rule}: {ours}, on the CPU {(alone.accepted, alone.promoted)}"
                    )
    return {"trees": 4 * trees, "accepted": accepted, "promoted": promoted, "wrong": wrong}


def _parents(form: str, trees: int, nodes: int, random: torch.Generator) -> torch.Tensor:
    if form == "chain":
        return torch.arange(-1, nodes - 1).expand(trees, nodes).contiguous()
    rows = [
        [-1, *(int(torch.randint(0, node, (), generator=random)) for node in range(1, nodes))] for _ in range(trees)
    ]
    return torch.tensor(rows)


def _nodes(flags: torch.Tensor, first: int) -> list[int]:
    found: list[int] = flags.nonzero().flatten().add(first).tolist()
    return found
