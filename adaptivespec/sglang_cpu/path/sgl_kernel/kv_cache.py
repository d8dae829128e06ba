"""KV slots: which slot each token of a request lies in, and moving slots' contents.

`req_to_token` [requests, positions] maps a request's row and a token position to a KV slot.
"""

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor


def _spans(rows: Tensor, start: Tensor, end: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """Yield (row, start, end, offset of the span in the flat slot list) per request."""
    offset = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        yield row, first, last, offset
        offset += last - first


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Write newly allocated slots into each request's row at positions [start, end)."""
    for row, first, last, offset in _spans(req_pool_indices, start, end):
        req_to_token[row, first:last] = out_cache_loc[offset : offset + last - first]


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Read each request's slots of positions [start, end) into the flat `out_cache_loc`."""
    for row, first, last, offset in _spans(req_pool_indices, start, end):
        out_cache_loc[offset : offset + last - first] = req_to_token[row, first:last]


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the topk * num_steps slots behind each request's last token: one run of num_steps per branch."""
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, seq_lens + topk * num_steps, out_cache_loc, pool_len
    )


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """Slots as each drafted branch sees them, [requests * topk, positions]: the prefix, then its own num_steps."""
    longest = int(seq_lens.max()) + num_steps
    table = req_to_token[req_pool_indices, :longest].repeat_interleave(topk, dim=0)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        branches = req_to_token[row, length : length + topk * num_steps].view(topk, num_steps)
        table[i * topk : (i + 1) * topk, length : length + num_steps] = branches
    return table


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slots src_loc to tgt_loc in every layer's buffer, given as addresses and bytes per slot."""
    moves = [(t, s) for t, s in zip(tgt_loc.tolist(), src_loc.tolist(), strict=True) if t != s]
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        # All reads first: a target slot may be another move's source.
        contents = [ctypes.string_at(address + source * stride, stride) for _, source in moves]
        for (target, _), content in zip(moves, contents, strict=True):
            ctypes.memmove(address + target * stride, content, stride)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Take the last committed token of each request's row of `accept_stride` tokens."""
    n = accept_lens.numel()
    last = torch.arange(n) * accept_stride + accept_lens - 1
    bonus_tokens[:n] = accept_tokens.reshape(-1)[last]


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Take the slots of the accepted nodes, in order (-1 marks an unused entry)."""
    flat = accept_index.reshape(-1)
    accepted = flat[flat >= 0].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]
