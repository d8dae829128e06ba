"""The accept rule inside SGLang's verification (paper section 3.2).

SGLang verifies first, as if all were strict. For the rows under a lossy rule the walk is then done again on the same
logits, with promotions, and takes the place of SGLang's: also where a batch holds sampled rows, for which SGLang
leaves its greedy path as a whole.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaptivespec.accept import Rule, VerifiedBatch, parents_from_links, verify_batch


@dataclass
class AcceptStep:
    """One verify step's rules, one per request, and, after it, what was promoted."""

    rules: Sequence[Rule]
    promotions: Tensor | None = None
    """[5, B, n] float64 on the device, rows as `PROMOTION_FIELDS`; None if no rule could promote."""

    @property
    def lossy_rows(self) -> list[int]:
        """Rows under a rule that may promote."""
        return [i for i, rule in enumerate(self.rules) if rule.promotion_limit != 0]


PROMOTION_FIELDS = ("promoted", "depth", "token", "target_token", "log_ratio")

_current: ContextVar[AcceptStep | None] = ContextVar("adaptivespec_accept_step", default=None)


@contextmanager
def accepting(rules: Sequence[Rule]) -> Iterator[AcceptStep]:
    """Verify under these rules inside the block."""
    step = AcceptStep(rules)
    token = _current.set(step)
    try:
        yield step
    finally:
        _current.reset(token)


def around_eagle_sample(
    original: Callable[..., tuple[Tensor, Tensor, Tensor]],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hook: returns (predict [B * n], accept_lens [B], accept_index [B, depth]) as SGLang's own does."""
    result = original(verify_input, batch, logits_output, *args, **kwargs)
    step = _current.get()
    rows = step.lossy_rows if step is not None else []
    if step is None or not rows or batch.forward_mode.is_idle():
        return result
    predict, accept_lens, accept_index = result
    verified = _verify(verify_input, logits_output.next_token_logits, step.rules, rows)
    own_index, own_lens = _walks(verified, rows, accept_index.shape[1], accept_index.dtype)
    n = verified.reached.shape[1]
    if len(rows) == len(step.rules):
        predict, accept_lens, accept_index = verified.commits.flatten().to(predict.dtype), own_lens, own_index
    else:
        predict.view(-1, n)[rows] = verified.commits.to(predict.dtype)
        accept_lens[rows], accept_index[rows] = own_lens, own_index
    step.promotions = _pack(verified, rows, len(step.rules))
    return predict, accept_lens, accept_index


def _verify(verify_input: Any, logits: Tensor, rules: Sequence[Rule], rows: list[int]) -> VerifiedBatch:
    n = verify_input.draft_token_num
    tokens = verify_input.draft_token.view(-1, n)
    parents = parents_from_links(verify_input.retrieve_next_token, verify_input.retrieve_next_sibling)
    trees = logits.view(-1, n, logits.shape[-1])
    if len(rows) < len(rules):
        tokens, parents, trees = tokens[rows], parents[rows], trees[rows]
    return verify_batch(tokens.long(), parents, trees, [rules[row] for row in rows])


def _walks(verified: VerifiedBatch, rows: list[int], depth: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Accepted nodes [rows, depth] as indices into the whole batch's nodes, -1 behind the end; lengths [rows]."""
    count, n = verified.reached.shape
    device = verified.reached.device
    offsets = torch.tensor(rows, device=device)[:, None] * n
    nodes = (offsets + torch.arange(n, device=device)).to(dtype)
    index = torch.full((count, depth + 1), -1, dtype=dtype, device=device)  # column `depth` takes the rest
    index.scatter_(1, torch.where(verified.reached, verified.depths, depth), nodes)
    return index[:, :depth].contiguous(), verified.reached.sum(-1).to(torch.int32)


def _pack(verified: VerifiedBatch, rows: list[int], batch_size: int) -> Tensor:
    """One small tensor, so that one copy brings it to the host; float64 holds token ids exactly."""
    nodes = verified.nodes
    above = nodes.targets.gather(1, nodes.parents.clamp(min=0))
    values = (verified.promoted, verified.depths, nodes.tokens, above, nodes.log_ratio)
    packed = torch.stack([value.to(torch.float64) for value in values])
    if len(rows) == batch_size:
        return packed
    whole = packed.new_zeros((len(values), batch_size, packed.shape[2]))
    whole[:, rows] = packed
    return whole
