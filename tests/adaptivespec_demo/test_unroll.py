"""The packed training-time test equals drafting one sequence step by step with an ordinary attention."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from adaptivespec.demo.drafter import init_from_target
from adaptivespec.demo.evaluate import walk
from adaptivespec.demo.features import compute, load_or_compute, load_target
from adaptivespec.demo.sequences import Generation, read_generations
from adaptivespec.demo.unroll import Frozen, pack, rotate, unroll

DEPTHS = 4


def plain_draft(drafter, sequence, frozen, base: int) -> list[torch.Tensor]:
    """Logits of `DEPTHS` drafts from one base: the whole prefix in, then one token at a time, as an engine drafts."""
    layer, shape = drafter.midlayer, drafter.shape
    hidden = drafter.fc(sequence.features[: base + 1].float())
    tokens = sequence.ids[1 : base + 2]
    positions = torch.arange(base + 1)
    keys, values, out = [], [], []
    for depth in range(DEPTHS):
        x = layer.inputs(frozen.embedding[tokens], hidden)
        kv_heads = (-1, shape.kv_heads, shape.head_dim)
        keys.append(rotate(layer.self_attn.k_proj(x).view(kv_heads), frozen, positions))
        values.append(layer.self_attn.v_proj(x).view(kv_heads))
        q = rotate(layer.self_attn.q_proj(x).view(-1, shape.heads, shape.head_dim), frozen, positions)[-1:]
        k, v = torch.cat(keys), torch.cat(values)
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], enable_gqa=True
        )
        hidden = hidden[-1:] + layer.self_attn.o_proj(attended[0].transpose(0, 1).reshape(1, -1))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        out.append(drafter.lm_head(drafter.norm(hidden))[0])
        tokens, positions = sequence.ids[base + 2 + depth, None], torch.tensor([base + 1 + depth])
    return out


@pytest.fixture(scope="module")
def loaded(target: Path, generations: Path, tmp_path_factory: pytest.TempPathFactory):
    model = load_target(str(target), torch.device("cpu")).float()
    drafter = init_from_target(model, torch.arange(0, 96, 2), seed=0)
    shard = [
        Generation(g.kind, g.prompt_ids, g.output_ids[: 12 + i])
        for i, g in enumerate(read_generations(generations)[:3])
    ]
    sequences = load_or_compute(model, shard, tmp_path_factory.mktemp("features"))
    frozen = Frozen.of(model, drafter.d2t, 64)
    return model, drafter, shard, sequences, frozen


def test_packed_drafting_is_step_by_step_drafting(loaded) -> None:
    _, drafter, _, sequences, frozen = loaded
    batch = pack(sequences, torch.device("cpu"))
    depths = list(unroll(drafter, batch, frozen, DEPTHS))
    for index, place in enumerate(batch.base.tolist()):
        sequence, base = sequences[int(batch.row[place])], int(batch.position[place])
        if base + 2 + DEPTHS > len(sequence.ids):
            continue
        for depth, logits in enumerate(plain_draft(drafter, sequence, frozen, base)):
            torch.testing.assert_close(depths[depth].logits[index], logits, rtol=1e-4, atol=1e-4)
            assert batch.next_token[depths[depth].label[index]] == sequence.ids[base + 2 + depth]


def test_drafts_beyond_the_end_do_not_count(loaded) -> None:
    _, drafter, _, sequences, frozen = loaded
    batch = pack(sequences[:1], torch.device("cpu"))
    valid = [int(depth.valid.sum()) for depth in unroll(drafter, batch, frozen, DEPTHS)]
    assert valid == [sequences[0].trained - depth for depth in range(DEPTHS)]


def test_soft_labels_predict_the_targets_own_tokens(loaded) -> None:
    model, _, _, sequences, _ = loaded
    for sequence in sequences:
        best = model.lm_head(sequence.final.float()).argmax(-1)
        answer = slice(sequence.prompt_length - 1, None)
        agreement = (best[answer] == sequence.ids[1:][answer]).float().mean()
        assert agreement > 0.9  # features are kept in bfloat16


def test_padding_does_not_change_features(loaded) -> None:
    model, _, shard, _, _ = loaded
    together = compute(model, shard)[0].split([len(g.ids) - 1 for g in shard])
    for generation, features in zip(shard, together, strict=True):
        torch.testing.assert_close(features, compute(model, [generation])[0], rtol=2e-2, atol=2e-2)


def test_a_walk_commits_accepted_drafts_and_one_more() -> None:
    assert walk([2, 0, 0, 1, 0, 3, 0, 0, 0], chain=3) == [3, 2, 4]
