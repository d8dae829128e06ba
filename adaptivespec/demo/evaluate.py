"""Held-out acceptance of a draft head: by depth, and the tau that greedy chains would reach."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaptivespec.demo.drafter import Drafter
from adaptivespec.demo.features import Featured
from adaptivespec.demo.unroll import Frozen, pack, unroll

CHAINS = (3, 7)


@dataclass(frozen=True)
class Acceptance:
    """What a head reaches on sequences it was not trained on."""

    by_depth: tuple[float, ...]
    """Share accepted at depth i of the drafts all of whose predecessors were accepted."""
    tau: Mapping[int, float]
    """Tokens committed per verify step, by the chain's number of drafts, over a greedy walk along each output."""
    tokens: int


@torch.no_grad()
def evaluate(drafter: Drafter, sequences: Sequence[Featured], frozen: Frozen) -> Acceptance:
    """Draft from every position of every output, one sequence at a time."""
    depths = max(CHAINS)
    alive_counts, accepted_counts = torch.zeros(depths), torch.zeros(depths)
    steps, committed = dict.fromkeys(CHAINS, 0), dict.fromkeys(CHAINS, 0)
    for sequence in sequences:
        hit, valid = hits(drafter, sequence, frozen, depths)
        prefix = hit.long().cumprod(0).bool()
        alive = torch.cat([valid[:1], prefix[:-1] & valid[1:]])
        alive_counts += alive.sum(1).cpu()
        accepted_counts += (alive & hit).sum(1).cpu()
        lengths = prefix.sum(0).tolist()
        for chain in CHAINS:
            walked = walk(lengths, chain)
            steps[chain] += len(walked)
            committed[chain] += sum(walked)
    by_depth = (accepted_counts / alive_counts.clamp(min=1)).tolist()
    tau = {chain: committed[chain] / max(1, steps[chain]) for chain in CHAINS}
    return Acceptance(tuple(round(x, 4) for x in by_depth), tau, sum(s.trained for s in sequences))


def hits(drafter: Drafter, sequence: Featured, frozen: Frozen, depths: int) -> tuple[Tensor, Tensor]:
    """(hit, valid) [depths, bases] bool: whether the head's best token is the target's."""
    batch = pack([sequence], frozen.embedding.device)
    out = [
        ((drafter.d2t[depth.logits.argmax(-1)] == batch.next_token[depth.label]) & depth.valid, depth.valid)
        for depth in unroll(drafter, batch, frozen, depths)
    ]
    return torch.stack([hit for hit, _ in out]), torch.stack([valid for _, valid in out])


def walk(accepted: Sequence[int], chain: int) -> list[int]:
    """Tokens committed by each step of a walk, where `accepted[t]` drafts in a row are right from base t."""
    steps, base = [], 0
    while base < len(accepted) - chain:
        steps.append(min(accepted[base], chain) + 1)
        base += steps[-1]
    return steps
