"""Accept rules: which drafted tokens of a tree are committed (paper section 3.2, Eq. 1; FLy: arXiv 2511.22972).

Greedy verification walks from the root along the target's arg-max tokens. At a mismatch node, where no child holds
that token, a lossy rule may promote one child instead; the walk then goes on below it.

    from adaptivespec.accept import Margin, verify_tree
    verify_tree(tokens, parents, target_logits, Margin(kappa=0.2)).accepted

All of it is tensor operations on one device, without a host sync, the same on CPU and CUDA.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from adaptivespec.checks import check_choice, check_count, check_number


@dataclass(frozen=True)
class Nodes:
    """What a rule sees of B trees of n nodes each. Node 0 is the root; parents come before their children."""

    tokens: Tensor
    """[B, n] int64: the drafted token of each node."""
    parents: Tensor
    """[B, n] int64: index of the parent; -1 for the root and for nodes that hang nowhere."""
    logits: Tensor
    """[B, n, V]: the target's logits behind each node, as the engine made them (penalties and masks applied)."""
    targets: Tensor
    """[B, n] int64: the target's arg-max token behind each node."""
    matches: Tensor
    """[B, n] bool: the node holds its parent's arg-max token."""
    log_ratio: Tensor
    """[B, n] float32: log(p(node's token) / p(arg-max token)) under the target at the parent; at most 0."""


class Rule(Protocol):
    """Says which children may be promoted where their parent is a mismatch node."""

    name: ClassVar[str]
    chains_only: ClassVar[bool]
    """True if the rule is defined on chains only: a server that may run a tree refuses it."""

    @property
    def promotion_limit(self) -> int | None:
        """Promotions per verify step; None is no limit, 0 makes the rule strict."""
        ...

    @staticmethod
    def promotable(rules: Sequence["Rule"], nodes: Nodes) -> Tensor:
        """[B, n] bool: nodes fit for promotion. `rules` are B objects of the rule's own class, one per tree.

        Nodes whose parent is no mismatch need no care, and of several fit siblings the most probable is taken.
        """
        ...


@dataclass(frozen=True)
class Strict:
    """Stop at the first mismatch: the output is the target's own greedy output."""

    name: ClassVar[str] = "strict"
    chains_only: ClassVar[bool] = False

    @property
    def promotion_limit(self) -> int | None:
        """Never promotes."""
        return 0

    @staticmethod
    def promotable(rules: Sequence["Rule"], nodes: Nodes) -> Tensor:
        """No node."""
        return torch.zeros_like(nodes.matches)


@dataclass(frozen=True)
class Margin:
    """Promote the most probable child if p(child) / p(top-1) >= kappa (Eq. 1); the ratio needs no softmax.

    Paper: "at the first mismatch position". We: `max_promotions` 1 per verify step; None promotes at every mismatch
    that passes. A kappa above 1 equals strict; 0 would promote anything and is refused.
    """

    name: ClassVar[str] = "margin"
    chains_only: ClassVar[bool] = False

    kappa: float = 0.2
    max_promotions: int | None = 1

    def __post_init__(self) -> None:
        check_number("kappa", self.kappa, above=0.0, hint="off is rule: strict")
        if self.max_promotions is not None:
            check_count("max_promotions", self.max_promotions)

    @property
    def promotion_limit(self) -> int | None:
        """`max_promotions`."""
        return self.max_promotions

    @staticmethod
    def promotable(rules: Sequence["Rule"], nodes: Nodes) -> Tensor:
        """Children within log kappa of the top; one without any probability (-inf) never is."""
        log_kappas = tuple(math.log(rule.kappa) for rule in rules if isinstance(rule, Margin))
        return nodes.log_ratio >= _column(log_kappas, nodes.log_ratio.device)


_ENTROPIES = ("top3", "full", "normalised")


@dataclass(frozen=True)
class Window:
    """FLy*: promote if the target is unsure (entropy >= theta) and the next `w` drafts match without a mismatch.

    A window that does not fit in the drafted chain cannot be confirmed and rejects. We: `entropy` is `top3`, nats
    over the three most probable tokens renormalised, as FLy's authors ship it; `full` is nats over the vocabulary,
    `normalised` the same divided by log(vocabulary).
    """

    name: ClassVar[str] = "window"
    chains_only: ClassVar[bool] = True

    w: int = 3
    theta: float = 0.3
    entropy: str = "top3"

    def __post_init__(self) -> None:
        check_count("w", self.w)
        check_number("theta", self.theta, at_least=0.0)
        check_choice("entropy", self.entropy, _ENTROPIES)

    @property
    def promotion_limit(self) -> int | None:
        """None: each promotion needs a window of its own, which bounds them."""
        return None

    @staticmethod
    def promotable(rules: Sequence["Rule"], nodes: Nodes) -> Tensor:
        """Nodes of a chain whose parent is unsure and whose w successors all match."""
        rows = [
            rule._promotable_chain(nodes.logits[i], nodes.matches[i])
            for i, rule in enumerate(rules)
            if isinstance(rule, Window)
        ]
        return torch.stack(rows)

    def _promotable_chain(self, logits: Tensor, matches: Tensor) -> Tensor:
        """One chain: logits [n, V], matches [n] -> [n] bool. Node j's parent is j - 1."""
        n = matches.shape[0]
        fit = torch.zeros_like(matches)
        last = n - 1 - self.w  # the last node that has w successors
        if last < 1:
            return fit
        unsure = self._entropy_nats(logits[:last]) >= self.theta
        confirmed = matches[2:].unfold(0, self.w, 1).all(dim=1)
        fit[1 : last + 1] = unsure & confirmed
        return fit

    def _entropy_nats(self, logits: Tensor) -> Tensor:
        """[m, V] -> [m]."""
        kept = logits.float()
        if self.entropy == "top3":
            kept = kept.topk(min(3, kept.shape[-1]), dim=-1).values
        entropy: Tensor = torch.special.entr(kept.softmax(dim=-1)).sum(dim=-1)
        return entropy / math.log(logits.shape[-1]) if self.entropy == "normalised" else entropy


@dataclass(frozen=True)
class VerifiedBatch:
    """The walks through B trees of n nodes, on the logits' device."""

    reached: Tensor
    """[B, n] bool: the root and the accepted nodes."""
    promoted: Tensor
    """[B, n] bool: those among them that a lossy rule promoted."""
    depths: Tensor
    """[B, n] int64: distance from the root; the accepted nodes' order."""
    commits: Tensor
    """[B, n] int64: for each reached node the token committed behind it: the accepted child's, or the bonus token."""
    nodes: Nodes


@dataclass(frozen=True)
class VerifiedTree:
    """The walk through one tree, on the host."""

    accepted: list[int]
    """Accepted nodes in order, without the root."""
    promoted: list[int]
    """Those among them that were promoted."""
    margins: list[float]
    """p(token) / p(top-1) under the target, one per promoted node."""
    bonus: int
    """The target's own token behind the last accepted node."""


def verify_batch(tokens: Tensor, parents: Tensor, target_logits: Tensor, rules: Sequence[Rule]) -> VerifiedBatch:
    """Verify B trees of n nodes: tokens and parents [B, n] int64, target_logits [B, n, V], one rule per tree."""
    nodes = _view(tokens, parents, target_logits)
    lineage = _lineage(parents)
    # [B, n, n]: row j holds j's siblings, itself included.
    siblings = (parents[:, :, None] == parents[:, None, :]) & (parents >= 0)[:, None, :]
    matches = nodes.matches & ~_precedes(siblings, nodes.matches)
    fit = _promotable(nodes, rules) & (parents >= 0) & ~(siblings & matches[:, None, :]).any(-1)
    promotions = fit & ~_beaten(siblings, fit, nodes.log_ratio)

    passes = matches | promotions
    passes[:, 0] = True
    broken = (lineage & ~passes[:, None, :]).any(-1)
    count = (lineage & promotions[:, None, :]).sum(-1)
    n = tokens.shape[1]
    limits = tuple(n if rule.promotion_limit is None else rule.promotion_limit for rule in rules)
    reached = ~broken & (count <= _column(limits, tokens.device))
    promoted = promotions & reached
    return VerifiedBatch(reached, promoted, lineage.sum(-1) - 1, _commits(nodes, promoted), nodes)


def verify_tree(
    tokens: Tensor | Sequence[int], parents: Tensor | Sequence[int], target_logits: Tensor, rule: Rule
) -> VerifiedTree:
    """Verify one tree outside any engine: tokens [n], parents [n] with -1 at the root, target_logits [n, V].

    Raises:
        ValueError: on shapes that do not agree, or if node 0 is not the root or a parent comes after its child.
    """
    tokens = torch.as_tensor(tokens, dtype=torch.int64, device=target_logits.device)
    parents = torch.as_tensor(parents, dtype=torch.int64, device=target_logits.device)
    _check_tree(tokens, parents, target_logits, rule)
    verified = verify_batch(tokens[None], parents[None], target_logits[None], [rule])
    accepted = verified.reached[0, 1:].nonzero().flatten().add(1).tolist()
    promoted = verified.promoted[0].nonzero().flatten()
    margins = verified.nodes.log_ratio[0, promoted].exp().tolist()
    last = accepted[-1] if accepted else 0
    return VerifiedTree(accepted, promoted.tolist(), margins, int(verified.nodes.targets[0, last]))


def parents_from_links(first_child: Tensor, next_sibling: Tensor, topk: int) -> Tensor:
    """Parents [B, n] from SGLang's linked lists of at most `topk` children, both [B, n] with -1 for none."""
    batch, n = first_child.shape
    # Column n takes the writes of absent links.
    parents = torch.full((batch, n + 1), -1, dtype=torch.int64, device=first_child.device)
    index = torch.arange(n, device=first_child.device).expand(batch, n)
    parents.scatter_(1, torch.where(first_child >= 0, first_child, n), index)
    to_sibling = torch.where(next_sibling >= 0, next_sibling, n)
    for _ in range(topk - 1):  # each pass hands the parent on to one more sibling
        parents.scatter_(1, to_sibling, parents[:, :n].clone())
    return parents[:, :n]


def _check_tree(tokens: Tensor, parents: Tensor, logits: Tensor, rule: Rule) -> None:
    n = tokens.shape[0] if tokens.dim() == 1 else 0
    if n == 0 or parents.shape != (n,) or logits.dim() != 2 or logits.shape[0] != n:
        raise ValueError(
            f"tokens {list(tokens.shape)}, parents {list(parents.shape)}, target_logits {list(logits.shape)}: "
            "expected [n], [n] and [n, V] with n of at least 1"
        )
    order = parents.tolist()
    if order[0] != -1 or any(not 0 <= parent < node for node, parent in enumerate(order[1:], start=1)):
        raise ValueError(f"parents {order}: expected -1 for node 0, the root, and an earlier node for every other")
    if rule.chains_only and order != list(range(-1, n - 1)):
        raise ValueError(f"rule {rule.name} is defined on chains only; parents {order} are a tree")


def _view(tokens: Tensor, parents: Tensor, logits: Tensor) -> Nodes:
    batch, n, vocabulary = logits.shape
    targets = logits.argmax(dim=-1)
    above = parents.clamp(min=0)
    top = logits.gather(2, targets[:, :, None])[:, :, 0].float().gather(1, above)
    own = logits.reshape(batch, n * vocabulary).gather(1, above * vocabulary + tokens).float()
    matches = (tokens == targets.gather(1, above)) & (parents >= 0)
    return Nodes(tokens, parents, logits, targets, matches, own - top)


def _lineage(parents: Tensor) -> Tensor:
    """[B, n, n] bool: row j holds j and its ancestors."""
    batch, n = parents.shape
    reach = torch.zeros((batch, n, n + 1), device=parents.device)
    reach.scatter_(2, torch.where(parents >= 0, parents, n)[:, :, None], 1.0)
    reach = reach[:, :, :n] + torch.eye(n, device=parents.device)
    for _ in range(max(1, (n - 1).bit_length())):  # each squaring doubles the depth that is covered
        reach = torch.bmm(reach, reach).clamp(max=1.0)
    return reach > 0


def _precedes(siblings: Tensor, chosen: Tensor) -> Tensor:
    """[B, n] bool: an earlier sibling is chosen (a tree may hold a token twice)."""
    return (siblings & _earlier(chosen.shape[1], chosen.device) & chosen[:, None, :]).any(-1)


def _beaten(siblings: Tensor, fit: Tensor, log_ratio: Tensor) -> Tensor:
    """[B, n] bool: a fit sibling is more probable, or equally and earlier."""
    earlier = _earlier(fit.shape[1], fit.device)
    mine, theirs = log_ratio[:, :, None], log_ratio[:, None, :]
    better = (theirs > mine) | ((theirs == mine) & earlier)
    return (siblings & fit[:, None, :] & better).any(-1)


def _promotable(nodes: Nodes, rules: Sequence[Rule]) -> Tensor:
    """Ask each rule class once, for its own trees."""
    kinds = {type(rule) for rule in rules}
    if len(kinds) == 1:
        return kinds.pop().promotable(rules, nodes)
    fit = torch.zeros_like(nodes.matches)
    for kind in kinds:
        rows = tuple(i for i, rule in enumerate(rules) if type(rule) is kind)
        index = row_index(rows, fit.device)
        part = Nodes(*(getattr(nodes, name).index_select(0, index) for name in Nodes.__dataclass_fields__))
        fit.index_copy_(0, index, kind.promotable([rules[i] for i in rows], part))
    return fit


def _commits(nodes: Nodes, promoted: Tensor) -> Tensor:
    """The arg-max behind each node, rewritten to the promoted child's token where there is one."""
    n = nodes.tokens.shape[1]
    commits = torch.cat([nodes.targets, nodes.targets[:, :1]], dim=1)  # column n takes the rest
    commits.scatter_(1, torch.where(promoted, nodes.parents, n), nodes.tokens)
    return commits[:, :n]


@lru_cache(maxsize=256)
def _earlier(n: int, device: torch.device) -> Tensor:
    """[n, n] bool: row j holds the nodes before j; kept, because it is the same at every step."""
    return torch.ones((n, n), dtype=torch.bool, device=device).tril(-1)


@lru_cache(maxsize=256)
def row_index(rows: tuple[int, ...], device: torch.device) -> Tensor:
    """Rows of a batch as an index [len(rows)] on the device; kept, because making it there waits for the device."""
    return torch.tensor(rows, dtype=torch.int64, device=device)


@lru_cache(maxsize=256)
def _column(values: tuple[float, ...], device: torch.device) -> Tensor:
    """[B, 1]; kept for the same reason."""
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
