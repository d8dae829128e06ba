"""Linear layers on any CPU, in float32.

torch's own linear hands few rows to a matrix product that repacks the weights at every call: verifying 4 tokens then
costs twice as much as one, although both read the same weights. Here one row goes to a matrix-vector product over
the weights stored column by column, and more rows, up to whole prompts, to oneDNN with weights that were packed once.

bfloat16 is left to torch: without hardware for it the cost grows with every row, so a CPU server wants float32.
"""

from dataclasses import dataclass
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class PackedWeight:
    """One weight in the two forms that suit one row and several."""

    by_column: Tensor
    """[in, out], contiguous."""
    packed: Tensor
    """oneDNN's own layout; opaque."""

    @classmethod
    def pack(cls, weight: Tensor) -> "PackedWeight":
        """From a float32 weight [out, in]."""
        by_column = weight.t().contiguous()
        return cls(by_column, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()))

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [rows, in] -> [rows, out], as F.linear."""
        if x.shape[0] == 1:
            return F.linear(x, self.by_column.t(), bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")
        return out


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
