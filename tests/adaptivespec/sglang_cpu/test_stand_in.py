"""The CPU stand-in of sgl_kernel against plain definitions."""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adaptivespec import sglang_cpu
from adaptivespec.sglang_cpu.linear import PackedWeight, can_pack, has_fbgemm

HEADS, KV_HEADS, DIM, SLOTS = 6, 2, 8, 64


@pytest.fixture(scope="module")
def kernel() -> Iterator[ModuleType]:
    """The stand-in, whatever else is installed."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "sgl_kernel"}
    sys.path.insert(0, str(sglang_cpu.STAND_IN_PATH))
    import sgl_kernel

    yield sgl_kernel
    sys.path.remove(str(sglang_cpu.STAND_IN_PATH))
    for name in [name for name in sys.modules if name.split(".")[0] == "sgl_kernel"]:
        del sys.modules[name]
    sys.modules.update(kept)


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """One query head at a time: q [n, heads, dim], k and v [s, kv_heads, dim], visible [n, s]."""
    out = torch.empty_like(q)
    for i in range(q.shape[0]):
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = (k[:, group] @ q[i, head]) / math.sqrt(DIM)
            weights = scores.masked_fill(~visible[i], -math.inf).softmax(-1)
            out[i, head] = weights @ v[:, group]
    return out


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    lengths=st.lists(st.integers(4, 12), min_size=1, max_size=3),
    run=st.booleans(),
    tree=st.booleans(),
)
def test_attention_is_its_definition(kernel: ModuleType, seed: int, lengths: list[int], run: bool, tree: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    slots = torch.arange(SLOTS) if run else torch.randperm(SLOTS, generator=random)
    table = torch.zeros(4, 16, dtype=torch.int32)
    rows = torch.randperm(4, generator=random)[: len(lengths)]
    for i, length in enumerate(lengths):
        table[rows[i], :length] = slots[i * 16 : i * 16 + length]
    k_buffer, v_buffer = (torch.randn(SLOTS, KV_HEADS, DIM, generator=random) for _ in range(2))
    seq_lens = torch.tensor(lengths)
    n = 4
    q = torch.randn(len(lengths) * n, HEADS, DIM, generator=random)
    mask = (torch.rand(len(lengths), n, n, generator=random) < 0.5) | torch.eye(n, dtype=torch.bool)
    out = torch.empty_like(q)
    counts, starts = torch.full_like(seq_lens, n), torch.arange(len(lengths)) * n
    torch.ops.sgl_kernel.extend_attention_cpu(
        *(q, None, None, out, k_buffer, v_buffer, 1.0, 1.0, table, rows, seq_lens, counts, starts, n),
        *(1 / math.sqrt(DIM), 0.0, False, 0, None, None, mask if tree else None, True),
    )
    for i, length in enumerate(lengths):
        visible = torch.ones(n, length, dtype=torch.bool).tril(length - n)
        if tree:
            visible[:, length - n :] = mask[i]
        index = table[rows[i], :length].long()
        expected = attend(q[i * n : (i + 1) * n], k_buffer[index], v_buffer[index], visible)
        torch.testing.assert_close(out[i * n : (i + 1) * n], expected)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), lengths=st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_decode_stores_the_new_token_and_attends_to_all(kernel: ModuleType, seed: int, lengths: list[int]) -> None:
    random = torch.Generator().manual_seed(seed)
    table = torch.randperm(SLOTS, generator=random)[:48].view(3, 16)
    rows, seq_lens = torch.arange(len(lengths)), torch.tensor(lengths)
    k_buffer, v_buffer = (torch.randn(SLOTS, KV_HEADS, DIM, generator=random) for _ in range(2))
    q = torch.randn(len(lengths), HEADS, DIM, generator=random)
    k, v = (torch.randn(len(lengths), KV_HEADS, DIM, generator=random) for _ in range(2))
    loc = table[rows, seq_lens - 1]
    out = torch.empty_like(q)
    torch.ops.sgl_kernel.decode_attention_cpu(
        *(q, k_buffer, v_buffer, 1.0, 1.0, out, k, v, loc, None, table, rows, seq_lens, 1 / math.sqrt(DIM)),
        *(0.0, False, 0, None, None),
    )
    torch.testing.assert_close(k_buffer[loc], k)
    torch.testing.assert_close(v_buffer[loc], v)
    for i, length in enumerate(lengths):
        index = table[i, :length]
        visible = torch.ones(1, length, dtype=torch.bool)
        torch.testing.assert_close(out[i : i + 1], attend(q[i : i + 1], k_buffer[index], v_buffer[index], visible))


def test_a_rewritten_table_at_a_freed_tensors_address_is_read_anew(kernel: ModuleType) -> None:
    """Same addresses, rows and lengths as the pass before, other slots: nothing of that pass may be reused."""
    from sgl_kernel.attention import _ForwardCache

    cache, buffers = _ForwardCache(), torch.zeros(2, SLOTS, KV_HEADS, DIM)
    storage = torch.tensor([[3, 9, 4]])
    rows = torch.zeros(1, dtype=torch.int64)
    cache.get(buffers[0], storage.view(1, 3), rows, torch.tensor([3]))
    storage.copy_(torch.tensor([[7, 1, 2]]))
    (slots,) = cache.get(buffers[1], storage.view(1, 3), rows, torch.tensor([3]))
    assert isinstance(slots, torch.Tensor)
    assert slots.tolist() == [7, 1, 2]


def test_layers_of_one_pass_share_their_slots(kernel: ModuleType) -> None:
    from sgl_kernel.attention import _ForwardCache

    cache, buffers = _ForwardCache(), torch.zeros(2, SLOTS, KV_HEADS, DIM)
    table, rows, lengths = torch.tensor([[3, 4, 5]]), torch.zeros(1, dtype=torch.int64), torch.tensor([3])
    first = cache.get(buffers[0], table, rows, lengths)
    assert first == [slice(3, 6)]
    assert cache.get(buffers[1], table, rows, lengths) is first
    table.copy_(torch.tensor([[6, 7, 8]]))
    assert cache.get(buffers[0], table, rows, lengths) == [slice(6, 9)], "a layer seen twice starts a new pass"


def test_what_the_stand_in_lacks_is_refused(kernel: ModuleType) -> None:
    q = torch.zeros(1, HEADS, DIM)
    buffer = torch.zeros(SLOTS, KV_HEADS, DIM)
    one = torch.ones(1, dtype=torch.int64)
    with pytest.raises(NotImplementedError, match="a sliding window"):
        torch.ops.sgl_kernel.decode_attention_cpu(
            *(q, buffer, buffer, 1.0, 1.0, q, None, None, one, None, one[:, None], one - 1, one, 1.0),
            *(0.0, False, 128, None, None),
        )


def test_a_tree_gets_its_links_mask_and_positions(kernel: ModuleType) -> None:
    # topk 2, two steps: candidates 0 1 from the root, 2 3 under 0, 4 5 under 1; kept are 0, 1, 3, 4.
    n = 5
    mask = torch.ones(n * n, dtype=torch.bool)
    positions, links = torch.empty(n, dtype=torch.int64), torch.full((3, 1, n), -1)
    kernel.build_tree_kernel_efficient_cpu(
        torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 3, 4]]), torch.tensor([7]), mask, positions, *links, 2, 2, n, 1
    )
    assert links[1, 0].tolist() == [1, 3, 4, -1, -1]
    assert links[2, 0].tolist() == [-1, 2, -1, -1, -1]
    assert positions.tolist() == [7, 8, 8, 9, 9]
    lineage = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]
    assert mask.view(n, n).int().tolist() == [[int(j in row) for j in range(n)] for row in lineage]


def test_a_node_without_its_parent_is_left_out(kernel: ModuleType) -> None:
    n = 3
    positions, links = torch.empty(n, dtype=torch.int64), torch.full((3, 1, n), -1)
    mask = torch.ones(n * n, dtype=torch.bool)
    kernel.build_tree_kernel_efficient_cpu(
        torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 4]]), torch.tensor([7]), mask, positions, *links, 2, 2, n, 1
    )
    assert links[1, 0].tolist() == [1, -1, -1]


def test_moving_slots_reads_before_it_writes(kernel: ModuleType) -> None:
    buffers = [torch.arange(12.0).view(6, 2) + 100 * layer for layer in range(2)]
    before = [buffer.clone() for buffer in buffers]
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.full((2,), buffers[0].stride(0) * 4)
    kernel.copy_all_layer_kv_cache_cpu(pointers, strides, torch.tensor([1, 2, 4]), torch.tensor([2, 4, 4]))
    for old, new in zip(before, buffers, strict=True):
        assert torch.equal(new, old[[0, 2, 4, 3, 4, 5]])


def test_each_branch_sees_the_prefix_and_its_own_slots(kernel: ModuleType) -> None:
    table = torch.arange(40, dtype=torch.int32).view(2, 20)
    seen = kernel.build_draft_decode_metadata_cpu(table, torch.tensor([1, 0]), torch.tensor([3, 5]), 2, 4, 20)
    assert seen[0, :7].tolist() == [20, 21, 22, 23, 24, 25, 26]
    assert seen[1, :7].tolist() == [20, 21, 22, 27, 28, 29, 30]
    assert seen[3, :9].tolist() == [0, 1, 2, 3, 4, 9, 10, 11, 12]


@pytest.mark.parametrize("rows", [1, 2, 8, 17, 40])
@pytest.mark.parametrize("half", [True, False])
def test_a_packed_linear_is_the_linear(rows: int, half: bool) -> None:
    """Also where the weights are float16 values: the sums stay float32, nothing is rounded to float16."""
    random = torch.Generator().manual_seed(rows)
    weight = torch.randn(48, 24, generator=random)
    weight = weight.half().float() if half else weight
    wide = torch.randn(rows, 30, generator=random)
    bias = torch.randn(48, generator=random)
    assert can_pack(weight)
    packed = PackedWeight.pack(weight)
    assert (packed.half is not None) == (half and has_fbgemm())
    for x in (wide[:, :24].contiguous(), wide[:, :24]):
        torch.testing.assert_close(packed.linear(x), x @ weight.t())
        torch.testing.assert_close(packed.linear(x, bias), x @ weight.t() + bias)


def test_only_float32_matrices_are_packed() -> None:
    assert not can_pack(torch.zeros(4, 4, dtype=torch.bfloat16))
    assert not can_pack(torch.zeros(4))
    assert not can_pack(None)


def test_the_environment_puts_the_stand_in_first_and_keeps_the_rest() -> None:
    path = str(sglang_cpu.STAND_IN_PATH)
    base = {"PYTHONPATH": os.pathsep.join(["/a", path, "/b"]), "OMP_NUM_THREADS": "3", "OTHER": "x"}
    env = sglang_cpu.environment(base)
    assert env == {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": os.pathsep.join([path, "/a", "/b"]),
        "OMP_NUM_THREADS": "3",
        "TORCH_COMPILE_DISABLE": "1",
        "SGLANG_EAGER_INPUT_NO_COPY": "1",
    }
    assert sglang_cpu.environment({})["OMP_NUM_THREADS"] == "1"


def test_a_real_kernel_is_never_shadowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    package = tmp_path / "sgl_kernel"
    package.mkdir()
    source = "import torch\ntorch.ops.sgl_kernel.decode_attention_cpu = print\n"
    (package / "__init__.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not sglang_cpu.needed()  # it has the CPU's operators
    (package / "__init__.py").write_text("raise ImportError('no driver')\n")
    assert sglang_cpu.needed()  # a CUDA build without a driver
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not sglang_cpu.needed()
