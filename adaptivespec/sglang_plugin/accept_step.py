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

from adaptivespec.accept import Rule, VerifiedBatch, parents_from_links, row_index, verify_batch


@dataclass
class AcceptStep:
    """One verify step's rules, one per request, and, after it, what was promoted."""

    rules: Sequence[Rule]
    promotions: Tensor | None = None
    """[5, B, n] float64 on the device, rows as `PROMOTION_FIELDS`; None if no rule could promote."""

    @property
    def lossy_rows(self) -> tuple[int, ...]:
        """Rows under a rule that may promote."""
        return tuple(i for i, rule in enumerate(self.rules) if rule.promotion_limit != 0)


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
    rows = step.lossy_rows if step is not None else ()
    if step is None or not rows or batch.forward_mode.is_idle():
        return result
    predict, accept_lens, accept_index = result
    index = row_index(rows, predict.device)
    verified = _verify(verify_input, logits_output.next_token_logits, step.rules, rows, index)
    own_index, own_lens = _walks(verified, index, accept_index)
    n = verified.reached.shape[1]
    predict.view(-1, n).index_copy_(0, index, verified.commits.to(predict.dtype))
    accept_index.index_copy_(0, index, own_index)
    accept_lens.index_copy_(0, index, own_lens.to(accept_lens.dtype))
    step.promotions = _pack(verified, index, len(step.rules))
    return predict, accept_lens, accept_index


def _verify(
    verify_input: Any, logits: Tensor, rules: Sequence[Rule], rows: tuple[int, ...], index: Tensor
) -> VerifiedBatch:
    n = verify_input.draft_token_num
    tokens = verify_input.draft_token.view(-1, n)
    first_child, next_sibling = verify_input.retrieve_next_token, verify_input.retrieve_next_sibling
    parents = parents_from_links(first_child, next_sibling, verify_input.topk)
    trees = logits.view(-1, n, logits.shape[-1])
    if len(rows) < len(rules):
        tokens, parents, trees = (whole.index_select(0, index) for whole in (tokens, parents, trees))
    return verify_batch(tokens.long(), parents, trees, [rules[row] for row in rows])


def _walks(verified: VerifiedBatch, index: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted nodes [rows, depth] as indices into the whole batch's nodes, -1 behind the end; lengths [rows]."""
    count, n = verified.reached.shape
    depth = like.shape[1]
    nodes = (index[:, None] * n + torch.arange(n, device=index.device)).to(like.dtype)
    walks = like.new_full((count, depth + 1), -1)  # column `depth` takes the rest
    walks.scatter_(1, torch.where(verified.reached, verified.depths, depth), nodes)
    return walks[:, :depth], verified.reached.sum(-1)


def _pack(verified: VerifiedBatch, index: Tensor, batch_size: int) -> Tensor:
    """One small tensor, so that one copy brings it to the host; float64 holds token ids exactly."""
    nodes = verified.nodes
    above = nodes.targets.gather(1, nodes.parents.clamp(min=0))
    values = (verified.promoted, verified.depths, nodes.tokens, above, nodes.log_ratio)
    packed = torch.stack([value.to(torch.float64) for value in values])
    return packed.new_zeros((len(values), batch_size, packed.shape[2])).index_copy_(1, index, packed)
