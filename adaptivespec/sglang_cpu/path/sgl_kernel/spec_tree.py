"""Draft trees: links, masks and positions from SGLang's topk indices, and the greedy walk.

A node's children are a linked list: `retrieve_next_token` is the first child, `retrieve_next_sibling` the next one,
-1 none. At most a few dozen nodes, so lists beat tensor operations.
"""

import torch
from torch import Tensor

_FULL_MASK, _QLEN_ONLY = 0, 1


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """Parent of each node: node i + 1 is the candidate selected[i] of SGLang's flat candidates; the root's is -1.

    A candidate of probability 1 scores as high as its parent and may be selected without it; it gets no parent and,
    as in SGLang's CUDA kernel, is never reached.
    """
    node_of = {candidate: i + 1 for i, candidate in enumerate(selected)}
    parents = [-1]
    for candidate in selected:
        group = candidate // topk
        parents.append(node_of.get(parent_list[group], -1) if group else 0)
    return parents


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of each node; children in rising order."""
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent >= 0:
            next_sibling[node], first_child[parent] = first_child[parent], node
    return first_child, next_sibling


def _ancestors(parents: list[int]) -> list[list[bool]]:
    """Which nodes each node attends to: itself and its ancestors. Parents come before their children."""
    rows: list[list[bool]] = []
    for node, parent in enumerate(parents):
        row = list(rows[parent]) if parent >= 0 else [False] * len(parents)
        row[node] = True
        rows.append(row)
    return rows


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill links, positions [requests * nodes] and the mask of each request's tree, in place."""
    requests, n = seq_lens.numel(), draft_token_num
    lengths = seq_lens.tolist()
    trees = [_parents(s, p, topk) for s, p in zip(selected_index.tolist(), parent_list.tolist(), strict=True)]
    links = [_links(tree) for tree in trees]
    ancestors = [_ancestors(tree) for tree in trees]
    retrieve_index[:, :n] = torch.arange(requests * n).view(requests, n)
    retrieve_next_token[:, :n] = torch.tensor([first_child for first_child, _ in links])
    retrieve_next_sibling[:, :n] = torch.tensor([next_sibling for _, next_sibling in links])
    node_positions = [[length + sum(row) - 1 for row in rows] for length, rows in zip(lengths, ancestors, strict=True)]
    positions.view(requests, n)[:] = torch.tensor(node_positions)
    _fill_mask(tree_mask, torch.tensor(ancestors), lengths, int(tree_mask_mode))


def _fill_mask(tree_mask: Tensor, ancestors: Tensor, lengths: list[int], mode: int) -> None:
    requests, n, _ = ancestors.shape
    if mode == _QLEN_ONLY:
        tree_mask[: requests * n * n] = ancestors.view(-1)
    elif mode == _FULL_MASK:
        start = 0
        for rows, length in zip(ancestors, lengths, strict=True):
            width = length + n
            tree_mask[start : start + n * width].view(n, width)[:, length:] = rows
            start += n * width
    else:
        raise NotImplementedError(f"tree mask mode {mode}: the CPU stand-in has 0 (full) and 1 (tree only)")


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree along the target's tokens; fill accepted nodes, their count and the tokens to commit."""
    depth, n = accept_index.shape[1], candidates.shape[1]
    tokens, targets = candidates.tolist(), target_predict.tolist()
    first_child, next_sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    paths: list[list[int]] = []
    for b in range(len(tokens)):
        path, node = [0], 0
        while len(path) < depth:
            child = first_child[b][node]
            while child != -1 and tokens[b][child] != targets[b][node]:
                child = next_sibling[b][child]
            if child == -1:
                break
            node = child
            path.append(node)
        paths.append(path)
    accept_index[:] = torch.tensor([[b * n + i for i in p] + [-1] * (depth - len(p)) for b, p in enumerate(paths)])
    accept_token_num[:] = torch.tensor([len(path) - 1 for path in paths])
    visited = [b * n + i for b, path in enumerate(paths) for i in path]
    predicts[visited] = target_predict.reshape(-1)[visited].to(predicts.dtype)


def rotate_input_ids_cpu(*args: object) -> None:
    """Only multi-layer EAGLE calls this."""
    raise NotImplementedError("multi-layer EAGLE is not covered by the CPU stand-in of sgl_kernel")
