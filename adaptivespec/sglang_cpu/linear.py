"""Linear layers on any CPU, in float32.

torch's own linear hands few rows to a matrix product that repacks the weights at every call: verifying 4 tokens then
costs twice as much as one, although both read the same weights. Here weights are packed once. Few rows wait for the
weights to come from memory, so a weight whose every value is a float16 is kept as such, half as long, and read by
FBGEMM; the sums are float32 all the same. Other weights go column by column to a matrix-vector product for one row.
More rows, up to whole prompts, go to oneDNN.

bfloat16 is left to torch: without hardware for it the cost grows with every row, so a CPU server wants float32.
"""

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 16
"""Up to here reading the weights costs more than the product."""


@dataclass(frozen=True)
class PackedWeight:
    """One weight in the two forms that suit few rows and more."""

    half: Any | None
    """FBGEMM's own float16 form; None where float16 would change a value."""
    by_column: Tensor | None
    """[in, out], contiguous; None beside `half`."""
    packed: Tensor
    """oneDNN's own layout; opaque."""

    @classmethod
    def pack(cls, weight: Tensor) -> "PackedWeight":
        """From a float32 weight [out, in]."""
        weight = weight.contiguous()
        packed = torch.ops.mkldnn._reorder_linear_weight.default(weight)
        if has_fbgemm() and torch.equal(weight.half().float(), weight):
            return cls(torch.ops.quantized.linear_prepack_fp16.default(weight, None), None, packed)
        return cls(None, weight.t().contiguous(), packed)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [rows, in] -> [rows, out], as F.linear."""
        rows = x.shape[0]
        if self.half is not None and 0 < rows <= FEW_ROWS:
            out: Tensor = torch.ops.quantized.linear_dynamic_fp16.default(x, self.half)
            return out if bias is None else out.add_(bias)
        if self.by_column is not None and rows == 1:
            return F.linear(x, self.by_column.t(), bias)
        many: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, bias, "none", [], "")
        return many


def has_fbgemm() -> bool:
    """Whether this torch's quantized operators are FBGEMM's."""
    return torch.backends.quantized.engine in ("fbgemm", "x86")


def can_pack(weight: object) -> TypeGuard[Tensor]:
    """Whether `weight` is a float32 matrix on the CPU and this torch has oneDNN."""
    has_onednn: bool = torch._C._has_mkldnn
    return (
        has_onednn
        and isinstance(weight, Tensor)
        and weight.dim() == 2
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
    )
