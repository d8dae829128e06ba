"""Plain-torch stand-in for the CPU build of `sgl_kernel`: what Llama-like models and EAGLE-3 need, and no more.

Names and argument orders are those of SGLang 0.5.23, which imports them when SGLANG_USE_CPU_ENGINE=1.
"""

from typing import Any

import torch

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.kv_cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from sgl_kernel.spec_tree import build_tree_kernel_efficient_cpu, rotate_input_ids_cpu, verify_tree_greedy_cpu

__version__ = "0.0.0+adaptivespec"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# SGLang reads these two as attributes of the op namespace. Real op registration would cost a dispatcher round trip
# per layer and a schema for no gain: nothing traces or compiles them here.
_ops: Any = torch.ops.sgl_kernel
_ops.decode_attention_cpu = decode_attention_cpu
_ops.extend_attention_cpu = extend_attention_cpu
