"""The accept rules against a plain-Python walk over random trees."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptivespec.accept import Margin, Rule, Strict, Window, parents_from_links, verify_batch, verify_tree

VOCABULARY = 6  # so few that children hold the target's token often, and twice at times


@dataclass(frozen=True)
class Tree:
    tokens: list[int]
    parents: list[int]
    logits: Tensor

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]


def entropy(logits: Tensor, kind: str) -> float:
    values = sorted(logits.double().tolist(), reverse=True)
    kept = values[:3] if kind == "top3" else values
    weights = [math.exp(value - kept[0]) for value in kept]
    nats = -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights if w)
    return nats / math.log(len(values)) if kind == "normalised" else nats


def walk(tree: Tree, rule: Rule) -> tuple[list[int], list[int], int]:
    """The oracle: (accepted, promoted, bonus), one node at a time."""
    accepted: list[int] = []
    promoted: list[int] = []
    node = 0
    while True:
        target = int(tree.logits[node].argmax())
        holders = [child for child in tree.children(node) if tree.tokens[child] == target]
        choice = holders[0] if holders else promotion(tree, rule, node, len(promoted))
        if choice is None:
            return accepted, promoted, target
        if not holders:
            promoted.append(choice)
        accepted.append(choice)
        node = choice


def promotion(tree: Tree, rule: Rule, node: int, already: int) -> int | None:
    children = tree.children(node)
    if not children or isinstance(rule, Strict):
        return None
    if isinstance(rule, Margin):
        best = max(children, key=lambda child: (float(tree.logits[node][tree.tokens[child]]), -child))
        ratio = math.exp(float(tree.logits[node][tree.tokens[best]] - tree.logits[node].max()))
        open_ = rule.max_promotions is None or already < rule.max_promotions
        return best if open_ and ratio >= rule.kappa else None
    assert isinstance(rule, Window)
    window = range(node + 2, node + 2 + rule.w)  # a chain: node's child is node + 1
    if window.stop > len(tree.tokens) or entropy(tree.logits[node], rule.entropy) < rule.theta:
        return None
    confirmed = all(tree.tokens[j] == int(tree.logits[j - 1].argmax()) for j in window)
    return node + 1 if confirmed else None


def random_tree(seed: int, n: int, chain: bool) -> Tree:
    """Built by hand from a seed: drawing each number from hypothesis would cost most of the tests' time."""
    rng = random.Random(seed)
    parents = [-1] + [node - 1 if chain else rng.randrange(node) for node in range(1, n)]
    # Multiples of 1/4 make ties; -inf stands for a token that a grammar masks.
    levels = [*(x / 4 for x in range(-8, 9)), -math.inf]
    logits = torch.tensor([rng.choices(levels, k=VOCABULARY) for _ in range(n)])
    tokens = [rng.randrange(VOCABULARY) for _ in range(n)]
    for node in range(1, n):  # half of all nodes match, or walks would end at the root
        if rng.random() < 0.5:
            tokens[node] = int(logits[parents[node]].argmax())
    return Tree(tokens, parents, logits)


def trees(chain: bool = False) -> st.SearchStrategy[Tree]:
    return st.builds(random_tree, seed=st.integers(0, 2**32), n=st.integers(1, 9), chain=st.just(chain))


KAPPAS = st.sampled_from([0.05, 0.2, 0.35, 0.7, 1.0, 1.01, 5.0])
MARGINS = st.builds(Margin, kappa=KAPPAS, max_promotions=st.sampled_from([1, 2, None]))
WINDOWS = st.builds(
    Window, w=st.integers(1, 4), theta=st.sampled_from([0.0, 0.3, 0.9]), entropy=st.sampled_from(["top3", "full"])
)


def check(tree: Tree, rule: Rule) -> None:
    accepted, promoted, bonus = walk(tree, rule)
    verified = verify_tree(tree.tokens, tree.parents, tree.logits, rule)
    assert (verified.accepted, verified.promoted, verified.bonus) == (accepted, promoted, bonus)
    for node, margin in zip(verified.promoted, verified.margins, strict=True):
        logits = tree.logits[tree.parents[node]]
        assert margin == pytest.approx(math.exp(float(logits[tree.tokens[node]] - logits.max())))


@settings(max_examples=300, deadline=None)
@given(tree=trees(), rule=st.one_of(st.just(Strict()), MARGINS))
def test_strict_and_margin_walk_as_the_oracle(tree: Tree, rule: Rule) -> None:
    check(tree, rule)


@settings(max_examples=300, deadline=None)
@given(tree=trees(chain=True), rule=WINDOWS)
def test_window_walks_as_the_oracle(tree: Tree, rule: Window) -> None:
    check(tree, rule)


@settings(max_examples=100, deadline=None)
@given(tree=trees(chain=True))
def test_normalised_entropy_is_nats_over_log_vocabulary(tree: Tree) -> None:
    check(tree, Window(w=1, theta=0.5, entropy="normalised"))


@settings(max_examples=100, deadline=None)
@given(pairs=st.lists(st.tuples(trees(chain=True), st.one_of(st.just(Strict()), MARGINS, WINDOWS)), min_size=1))
def test_a_batch_of_mixed_rules_is_its_trees_one_by_one(pairs: list[tuple[Tree, Rule]]) -> None:
    n = min(len(tree.tokens) for tree, _ in pairs)
    cut = [Tree(tree.tokens[:n], tree.parents[:n], tree.logits[:n]) for tree, _ in pairs]
    rules = [rule for _, rule in pairs]
    batch = verify_batch(
        torch.tensor([tree.tokens for tree in cut]),
        torch.tensor([tree.parents for tree in cut]),
        torch.stack([tree.logits for tree in cut]),
        rules,
    )
    for row, (tree, rule) in enumerate(zip(cut, rules, strict=True)):
        accepted, promoted, bonus = walk(tree, rule)
        path = [0, *accepted]
        assert batch.reached[row].nonzero().flatten().tolist() == sorted(path)
        assert batch.promoted[row].nonzero().flatten().tolist() == promoted
        assert batch.depths[row, path].tolist() == list(range(len(path)))
        assert batch.commits[row, path].tolist() == [*(tree.tokens[node] for node in accepted), bonus]


@settings(max_examples=100, deadline=None)
@given(tree=trees(), limit=st.sampled_from([1, None]))
def test_accepted_length_never_shrinks_as_kappa_falls(tree: Tree, limit: int | None) -> None:
    kappas = [2.0, 1.0, 0.5, 0.2, 0.05, 1e-4]
    accepted = [verify_tree(tree.tokens, tree.parents, tree.logits, Margin(k, limit)).accepted for k in kappas]
    strict = verify_tree(tree.tokens, tree.parents, tree.logits, Strict()).accepted
    assert accepted[0] == strict
    assert all(tighter == looser[: len(tighter)] for tighter, looser in pairwise(accepted))


def test_a_token_without_probability_is_never_promoted() -> None:
    logits = torch.tensor([[0.0, 1.0, -math.inf], [0.0, 0.0, 0.0]])
    assert verify_tree([0, 2], [-1, 0], logits, Margin(1e-30)).accepted == []
    assert verify_tree([0, 2], [-1, 0], torch.full((2, 3), -math.inf), Margin(1e-30)).accepted == []


def test_ties_go_to_the_first_child_and_the_walk_goes_on_below() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.0, 3.0], [3.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
    verified = verify_tree([0, 1, 2, 2], [-1, 0, 0, 1], logits, Margin(0.2))
    assert (verified.accepted, verified.promoted, verified.bonus) == ([1, 3], [1], 1)
    assert verified.margins == pytest.approx([math.exp(-1.0)])


def test_half_precision_logits_verify_as_their_float_values() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    args = (list(range(8)), [-1, 0, 0, 1, 1, 2, 3, 4])
    assert verify_tree(*args, logits, Margin(0.1)) == verify_tree(*args, logits.float(), Margin(0.1))


@st.composite
def forests(draw: st.DrawFn) -> list[list[int]]:
    n = draw(st.integers(1, 9))
    return [[-1] + [draw(st.integers(0, node - 1)) for node in range(1, n)] for _ in range(draw(st.integers(1, 3)))]


@given(forest=forests())
def test_parents_come_back_from_linked_lists(forest: list[list[int]]) -> None:
    def links(parents: Sequence[int]) -> tuple[list[int], list[int]]:
        first, sibling = [-1] * len(parents), [-1] * len(parents)
        for node in range(len(parents) - 1, 0, -1):
            sibling[node], first[parents[node]] = first[parents[node]], node
        return first, sibling

    firsts, siblings = zip(*map(links, forest), strict=True)
    topk = max((parents.count(node) for parents in forest for node in range(len(parents))), default=1)
    assert parents_from_links(torch.tensor(firsts), torch.tensor(siblings), topk).tolist() == forest


def test_a_node_that_hangs_nowhere_is_never_reached() -> None:
    logits = torch.zeros(1, 3, 4)
    batch = verify_batch(torch.tensor([[0, 0, 0]]), torch.tensor([[-1, 0, -1]]), logits, [Margin(0.5)])
    assert batch.reached.tolist() == [[True, True, False]]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Margin(kappa=0), "rule: strict"),
        (lambda: Margin(kappa=-0.1), "kappa=-0.1"),
        (lambda: Margin(kappa=math.inf), "kappa=inf"),
        (lambda: Margin(kappa=True), "kappa=True"),
        (lambda: Margin(max_promotions=0), "max_promotions=0"),
        (lambda: Window(w=0), "w=0"),
        (lambda: Window(theta=-1), "theta=-1"),
        (lambda: Window(entropy="bits"), "top3, full, normalised"),
    ],
)
def test_rule_options_out_of_range_are_named(make: object, names: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        make()  # type: ignore[operator]
    assert names in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "parents", "shape", "names"),
    [
        ([0, 1], [-1], (2, 4), "parents [1]"),
        ([0, 1], [-1, 0], (3, 4), "target_logits [3, 4]"),
        ([0, 1], [-1, 1], (2, 4), "parents [-1, 1]"),
        ([0, 1], [0, 0], (2, 4), "parents [0, 0]"),
        ([], [], (0, 4), "tokens [0]"),
    ],
)
def test_a_malformed_tree_is_refused(tokens: list[int], parents: list[int], shape: tuple[int, int], names: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        verify_tree(tokens, parents, torch.zeros(shape), Strict())
    assert names in str(caught.value)


def test_window_refuses_a_tree() -> None:
    with pytest.raises(ValueError, match="chains only"):
        verify_tree([0, 1, 2], [-1, 0, 0], torch.zeros(3, 4), Window())
