"""The CPU path's operators against their definitions: both sides of a server's comparison run them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from adaptivespec.sglang_plugin.cpu import _around_rms_norm, _around_rotary


def refused(*args: Any) -> None:
    raise AssertionError("handed back to SGLang")


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("size", [1.0, 1e-3], ids=["common", "as small as eps"])
def test_rms_norm_is_its_definition(rows: int, size: float) -> None:
    random = torch.Generator().manual_seed(rows)
    plain = torch.nn.RMSNorm(64, eps=1e-5)
    plain.weight.data = torch.rand(64, generator=random)
    norm: Any = SimpleNamespace(
        hidden_size=64,
        weight=plain.weight,
        variance_epsilon=1e-5,
        variance_size_override=None,
        override_orig_dtype=None,
    )
    with torch.inference_mode():
        for _ in range(2):
            x, residual = (torch.randn(rows, 64, generator=random) * size for _ in range(2))
            before = x.clone()
            torch.testing.assert_close(_around_rms_norm(refused, norm, x), plain(x))
            out, summed = _around_rms_norm(refused, norm, x, residual)
            torch.testing.assert_close(summed, x + residual)
            torch.testing.assert_close(out, plain(x + residual))
            torch.testing.assert_close(x, before, rtol=0, atol=0)
        torch.testing.assert_close(_around_rms_norm(refused, norm, torch.zeros(rows, 64)), torch.zeros(rows, 64))


def test_rotary_is_its_definition_at_every_call() -> None:
    """Also where a position tensor is counted up in place between calls, as drafting does, and for another table."""
    heads, kv_heads, size = 3, 1, 16
    rotary: Any = SimpleNamespace(head_size=size, rotary_dim=size, is_neox_style=True)
    random = torch.Generator().manual_seed(0)

    def expected(query: Tensor, key: Tensor, angles: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat((angles, angles), -1)[positions]
        turned = apply_rotary_pos_emb(
            query.view(2, heads, size), key.view(2, kv_heads, size), both.cos(), both.sin(), unsqueeze_dim=1
        )
        return turned[0].flatten(1), turned[1].flatten(1)

    for base, first in ((1e4, 5), (1e2, 7)):  # the second table starts where the first one ended
        positions = torch.tensor([first, first + 4])
        angles = torch.arange(20.0)[:, None] / base ** (torch.arange(0, size, 2) / size)
        rotary.cos_sin_cache = torch.cat((angles.cos(), angles.sin()), -1)
        for _ in range(3):
            qkv = torch.randn(2, (heads + 2 * kv_heads) * size, generator=random)
            query, key = qkv[:, : heads * size], qkv[:, heads * size : (heads + kv_heads) * size]
            got = _around_rotary(refused, rotary, positions, query, key)
            for one, other in zip(got, expected(query, key, angles, positions), strict=True):
                torch.testing.assert_close(one, other)
            positions.add_(1)
