"""On a plain CPU: keep SGLang on its tree-capable attention backend, and off its slowest paths.

Every server gains alike, vanilla and SGLang's own EAGLE-3 included; nothing here runs beside CUDA or a real
sgl_kernel.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from adaptivespec.sglang_cpu.linear import PackedWeight, can_pack
from adaptivespec.sglang_plugin import cpu_draft

logger = logging.getLogger(__name__)

_PACKED = "adaptivespec_packed"
_SCALED = "adaptivespec_scaled"
_MAX_PACKED_BYTES = 4 << 30  # two more copies of every weight: fine for the demo's model, not for a large one


def register() -> None:
    """Make SGLang keep `intel_amx`, which the stand-in of sgl_kernel serves on any CPU, and speed up float32.

    SGLang would silently fall back to `torch_native`, which cannot verify a tree.

    Raises:
        RuntimeError: beside CUDA, where the stand-in must not be on the path.
    """
    if torch.cuda.is_available():
        raise RuntimeError("the CPU stand-in of sgl_kernel is on PYTHONPATH of a CUDA machine; take it off the path")
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.runtime_context import override_platform

    override_platform(has_amx=True).__enter__()
    for target, hook in _AROUND.items():
        HookRegistry.register(target, hook, HookType.AROUND)


class _Packer:
    """Packs weights until the memory set aside for it is used up."""

    def __init__(self) -> None:
        self._left = _MAX_PACKED_BYTES

    def pack(self, layer: Any) -> PackedWeight | None:
        """Pack the layer's weight, which must not change any more; None if it stays as it is."""
        weight = getattr(layer, "weight", None)
        packed = None
        if can_pack(weight) and 2 * weight.nbytes <= self._left:
            self._left -= 2 * weight.nbytes
            packed = PackedWeight.pack(weight.data)
        setattr(layer, _PACKED, packed)
        return packed


_packer = _Packer()


def _around_weights_loaded(original: Callable[..., None], method: Any, layer: Any) -> None:
    """A linear layer's weights are final: pack them, and let the layer keep the column-wise copy, if there is one."""
    original(method, layer)
    packed = _packer.pack(layer)
    if packed is not None and packed.by_column is not None:
        layer.weight.data = packed.by_column.t()


def _around_linear(original: Callable[..., Tensor], method: Any, layer: Any, x: Tensor, bias: Any = None) -> Tensor:
    packed = getattr(layer, _PACKED, None)
    if packed is None or x.dtype != torch.float32 or x.dim() != 2:
        return original(method, layer, x, bias)
    out: Tensor = packed.linear(x, bias)
    return out


def _around_lm_head(
    original: Callable[..., Tensor], processor: Any, hidden: Tensor, head: Any, *args: Any, **kwargs: Any
) -> Tensor:
    """The head is often the embedding itself, which stays as it is; it is packed at its first use."""
    if not hasattr(head, _PACKED):
        _packer.pack(head)
    packed = getattr(head, _PACKED)
    if packed is None or hidden.dtype != torch.float32 or processor.use_fp32_lm_head:
        return original(processor, hidden, head, *args, **kwargs)
    out: Tensor = packed.linear(hidden)
    return out


def _around_rms_norm(original: Callable[..., Any], norm: Any, x: Tensor, residual: Any = None, *args: Any) -> Any:
    """float32: x / sqrt(|x|^2 + n eps) * sqrt(n) w, four operators instead of nine."""
    plain = x.dtype == torch.float32 and not any(arg is not None for arg in args)
    if not plain or norm.variance_size_override is not None or norm.override_orig_dtype is not None:
        return original(norm, x, residual, *args)
    if residual is not None:
        x = residual = x + residual
    scaled: tuple[Tensor, Tensor] | None = getattr(norm, _SCALED, None)
    if scaled is None:
        size = norm.hidden_size
        scaled = (norm.weight * math.sqrt(size), torch.tensor(math.sqrt(size * norm.variance_epsilon)))
        setattr(norm, _SCALED, scaled)
    weight, floor = scaled
    length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor)
    out = x.div(length).mul_(weight)
    return out if residual is None else (out, residual)


class _Turns:
    """Cosines and sines of the last few positions: all layers of a forward pass want the same."""

    def __init__(self) -> None:
        self._of: tuple[Tensor | None, list[int]] = (None, [])
        self._values: tuple[Tensor, Tensor]

    def at(self, cache: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """From SGLang's `cos_sin_cache` [positions, size]: both [n, 1, size], the sine's first half negated."""
        numbers = positions.flatten().tolist()
        if self._of[0] is not cache or self._of[1] != numbers:
            cos, sin = cache.index_select(0, positions.flatten()).float().chunk(2, dim=-1)
            self._values = torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
            self._of = (cache, numbers)
        return self._values


_turns = _Turns()


def _around_rotary(
    original: Callable[..., tuple[Tensor, Tensor]],
    rotary: Any,
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """float32 over whole heads: query and key lie side by side in one projection, so one rotation serves both."""
    size = rotary.head_size
    adjacent = (
        query.dim() == key.dim() == 2
        and query.stride(1) == key.stride(1) == 1
        and query.stride(0) == key.stride(0)
        and key.data_ptr() == query.data_ptr() + query.shape[1] * query.element_size()
    )
    plain = query.dtype == torch.float32 and rotary.is_neox_style and rotary.rotary_dim == size
    if not (adjacent and plain) or args or any(value is not None for value in kwargs.values()):
        return original(rotary, positions, query, key, *args, **kwargs)
    cos, sin = _turns.at(rotary.cos_sin_cache, positions)
    count, width = query.shape[0], query.shape[1] + key.shape[1]
    heads = torch.as_strided(query, (count, width // size, size), (query.stride(0), size, 1))
    turned = torch.addcmul(heads * cos, heads.roll(size // 2, dims=-1), sin).view(count, width)
    return turned[:, : query.shape[1]], turned[:, query.shape[1] :]


_AROUND: dict[str, Callable[..., Any]] = {
    "sglang.srt.model_executor.model_runner.ModelRunner.forward": cpu_draft.around_forward,
    "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.process_weights_after_loading": (
        _around_weights_loaded
    ),
    "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply": _around_linear,
    "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head": _around_lm_head,
    "sglang.srt.layers.layernorm.RMSNorm.forward_native": _around_rms_norm,
    "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_native": _around_rotary,
}
