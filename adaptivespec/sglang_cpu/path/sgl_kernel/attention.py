"""Attention over the paged KV cache by torch's own flash kernel for CPU.

Two things make it fast for one or few requests: the heads of a query group are folded into the query axis, so that no
key or value is repeated; and where a request's slots are one run, its keys are a view of the cache, not a copy.
"""

import weakref

import torch
import torch.nn.functional as F
from torch import Tensor


class _ForwardCache:
    """What all layers of one forward pass share, worked out by its first layer: slots, and masks.

    The tensors of a pass are known by identity, not by address: a freed tensor's memory is soon another's.
    """

    def __init__(self) -> None:
        self._tensors: tuple[weakref.ref[Tensor] | None, ...] = ()
        self._values: tuple[object, ...] = ()
        self._layers: set[int] = set()
        self._slots: list[Tensor | slice] = []
        self.masks: dict[int, Tensor | None] = {}
        """By request; filled by `extend_attention_cpu`."""

    def get(
        self,
        layer: Tensor,
        req_to_token: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        tree_mask: Tensor | None = None,
        values: tuple[object, ...] = (),
    ) -> list[Tensor | slice]:
        """Slots per request: a slice where they are one rising run, else indices. `layer` is the layer's key buffer.

        A layer that comes twice means a new forward pass: the table may have been rewritten since.
        """
        row_list, lengths = rows.tolist(), seq_lens.tolist()
        values = (row_list, lengths, *values)
        tensors = (req_to_token, rows, seq_lens, tree_mask)
        if values != self._values or not self._same(tensors) or layer.data_ptr() in self._layers:
            self._tensors = tuple(None if t is None else weakref.ref(t) for t in tensors)
            self._values, self._layers, self.masks = values, set(), {}
            self._slots = [_run(req_to_token[row, :length]) for row, length in zip(row_list, lengths, strict=True)]
        self._layers.add(layer.data_ptr())
        return self._slots

    def _same(self, tensors: tuple[Tensor | None, ...]) -> bool:
        if len(tensors) != len(self._tensors):
            return False
        return all((None if ref is None else ref()) is t for ref, t in zip(self._tensors, tensors, strict=True))


def _run(slots: Tensor) -> Tensor | slice:
    """The slots as a slice if they rise by one, else the tensor itself."""
    n = slots.numel()
    first = int(slots[0])
    if int(slots[-1]) == first + n - 1 and torch.equal(slots, torch.arange(first, first + n, dtype=slots.dtype)):
        return slice(first, first + n)
    return slots


_forward_cache = _ForwardCache()


def _read(buffer: Tensor, slots: Tensor | slice, dtype: torch.dtype) -> Tensor:
    """Keys or values of a request as [1, kv_heads, length, dim]."""
    rows = buffer[slots] if isinstance(slots, slice) else buffer.index_select(0, slots)
    return rows.to(dtype).transpose(0, 1)[None]


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """q [n, heads, dim] on k, v [1, kv_heads, length, dim]; mask [group * n, length] or none; returns [n, heads, dim]."""
    n, heads, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    folded = q.view(n, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, dim)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
    return out.view(kv_heads, group, n, -1).permute(2, 0, 1, 3).reshape(n, heads, -1)


def _refuse(k_scale: float, v_scale: float, logit_cap: float, cross: bool, window: int, sinks: Tensor | None) -> None:
    """One clear error for what only the real kernel has; silence here would be wrong tokens."""
    used = {
        "a KV cache scale": k_scale != 1.0 or v_scale != 1.0,
        "a logit cap": logit_cap > 0,
        "cross attention": cross,
        "a sliding window": window > 0,
        "attention sinks": sinks is not None,
    }
    names = [name for name, wanted in used.items() if wanted]
    if names:
        raise NotImplementedError(f"the model uses {', '.join(names)}: not covered by the CPU stand-in of sgl_kernel")


def decode_attention_cpu(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    out: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scale: float,
    logit_cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One query per request, q and out [requests, heads, dim]; first stores the new key and value in slots `loc`."""
    _refuse(k_scale, v_scale, logit_cap, is_cross, window, sinks)
    if k is not None and v is not None:
        k_buffer.index_copy_(0, loc, k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype))
        v_buffer.index_copy_(0, loc, v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype))
    if q.shape[0] > 1:
        _decode_batch(q, k_buffer, v_buffer, out, req_to_token[req_pool_indices], seq_lens, scale)
        return
    slots = _forward_cache.get(k_buffer, req_to_token, req_pool_indices, seq_lens)[0]
    out[:] = _attend(q, _read(k_buffer, slots, q.dtype), _read(v_buffer, slots, q.dtype), scale, None)


def _decode_batch(
    q: Tensor, k_buffer: Tensor, v_buffer: Tensor, out: Tensor, table: Tensor, seq_lens: Tensor, scale: float
) -> None:
    """All requests in one kernel call: keys gathered to the longest length, the rest masked."""
    requests, heads, dim = q.shape
    longest = int(seq_lens.max())
    kv_heads = k_buffer.shape[1]
    flat = table[:, :longest].reshape(-1)
    k = k_buffer.index_select(0, flat).view(requests, longest, kv_heads, dim).transpose(1, 2).to(q.dtype)
    v = v_buffer.index_select(0, flat).view(requests, longest, kv_heads, -1).transpose(1, 2).to(q.dtype)
    mask = (torch.arange(longest) < seq_lens[:, None])[:, None, None, :]
    folded = q.view(requests, kv_heads, heads // kv_heads, dim)
    out[:] = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale).reshape(requests, heads, -1)


def extend_attention_cpu(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    extend_start: Tensor,
    max_extend_len: int,
    scale: float,
    logit_cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Several new tokens per request, q and out [tokens, heads, dim]; their keys are in the cache already.

    A request attends to its whole prefix; among its new tokens the mask is causal, or `tree_mask` [requests, n, n].
    """
    _refuse(k_scale, v_scale, logit_cap, is_cross, window, sinks)
    lengths, counts = seq_lens.tolist(), extend_lens.tolist()
    mask_values = (counts, is_causal, q.dtype, q.shape[1])
    slots = _forward_cache.get(k_buffer, req_to_token, req_pool_indices, seq_lens, tree_mask, mask_values)
    masks, group = _forward_cache.masks, q.shape[1] // k_buffer.shape[1]
    for i, (length, n, start) in enumerate(zip(lengths, counts, extend_start.tolist(), strict=True)):
        if i not in masks:
            tree = tree_mask.view(-1, n, n)[i] if tree_mask is not None else None
            masks[i] = _extend_mask(n, length, tree, is_causal, group, q.dtype)
        keys, values = _read(k_buffer, slots[i], q.dtype), _read(v_buffer, slots[i], q.dtype)
        out[start : start + n] = _attend(q[start : start + n], keys, values, scale, masks[i])


def _extend_mask(
    n: int, length: int, tree: Tensor | None, is_causal: bool, group: int, dtype: torch.dtype
) -> Tensor | None:
    """What is added to the scores of n new tokens behind length - n old ones, [group * n, length]; none if all is seen."""
    if tree is None and (n == 1 or not is_causal):
        return None
    # Compared, not cut by `tril`, which wakes all threads for a few hundred values.
    seen = torch.arange(length) <= torch.arange(length - n, length)[:, None]
    if tree is not None:
        seen[:, length - n :] = tree
    return torch.zeros((n, length), dtype=dtype).masked_fill_(~seen, float("-inf")).repeat(group, 1)
