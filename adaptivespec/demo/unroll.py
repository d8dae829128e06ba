"""Training-time test: the draft head reads its own hidden states, as it will when it drafts (EAGLE-3, section 3.2).

Positions of all sequences are packed [n]; only attention is padded. At depth i the query that started at base t sees the
true context 0..t and its own i earlier drafts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from adaptivespec.demo.drafter import Drafter
from adaptivespec.demo.features import Featured


@dataclass(frozen=True)
class Batch:
    """Packed sequences: n context positions, b bases (the positions that drafts start from) of s sequences."""

    next_token: Tensor
    """[n]: the token after each position."""
    features: Tensor
    """[n, 3 hidden]."""
    final: Tensor
    """[n, hidden]: the target's last hidden states."""
    row: Tensor
    """[n]: the sequence of each position."""
    position: Tensor
    """[n]: its place in that sequence."""
    base: Tensor
    """[b]: bases, as indices of positions."""
    slot: Tensor
    """[b]: the base's place among its sequence's bases."""
    last: Tensor
    """[b]: the last position of the base's sequence."""


@dataclass(frozen=True)
class Depth:
    """What the head says at one depth, base by base."""

    logits: Tensor
    """[b, draft vocabulary]."""
    label: Tensor
    """[b]: the position whose `next_token` and `final` are the labels."""
    valid: Tensor
    """[b] bool: false beyond the sequence's end."""


@dataclass(frozen=True)
class Frozen:
    """What the head borrows from the target."""

    embedding: Tensor
    """[vocabulary, hidden]."""
    head: Tensor
    """[draft vocabulary, hidden]: the target's head on the draft vocabulary."""
    cos: Tensor
    """[positions, head_dim]."""
    sin: Tensor

    @classmethod
    def of(cls, target: Any, d2t: Tensor, positions: int) -> "Frozen":
        """From a target, for a draft vocabulary and so many positions; float32."""
        places = torch.arange(positions, device=target.device)[None]
        cos, sin = target.model.rotary_emb(torch.zeros(1, device=target.device), places)
        embedding, head = target.get_input_embeddings().weight, target.lm_head.weight[d2t]
        return cls(embedding.float(), head.float(), cos[0].float(), sin[0].float())


def pack(sequences: Sequence[Featured], device: torch.device) -> Batch:
    """Pack sequences; each starts a draft at every position from the prompt's last to the output's last but two."""
    lengths = torch.tensor([len(s.features) for s in sequences])
    offsets = lengths.cumsum(0) - lengths
    row = torch.arange(len(sequences)).repeat_interleave(lengths)
    position = torch.arange(len(row)) - offsets[row]
    first = torch.tensor([s.prompt_length - 1 for s in sequences])
    base = torch.nonzero((position >= first[row]) & (position < lengths[row] - 1)).squeeze(1)
    tensors = (
        torch.cat([s.ids[1:] for s in sequences]),
        torch.cat([s.features for s in sequences]).float(),
        torch.cat([s.final for s in sequences]).float(),
        row,
        position,
        base,
        position[base] - first[row[base]],
        (offsets + lengths - 1)[row[base]],
    )
    return Batch(*(tensor.to(device) for tensor in tensors))


def unroll(drafter: Drafter, batch: Batch, frozen: Frozen, depths: int) -> Iterator[Depth]:
    """Draft `depths` tokens from every base, feeding the true tokens (teacher forcing) and the head's own states."""
    attention, layer = drafter.midlayer.self_attn, drafter.midlayer
    context = drafter.fc(batch.features).float()  # under autocast the residual stream keeps float32
    inputs = layer.inputs(frozen.embedding[batch.next_token], context)
    shape = drafter.shape
    heads = (-1, shape.heads, shape.head_dim)
    kv_heads = (-1, shape.kv_heads, shape.head_dim)
    position, row = batch.position, batch.row[batch.base]
    keys = rotate(attention.k_proj(inputs).view(kv_heads), frozen, position)
    values = attention.v_proj(inputs).view(kv_heads)
    attend = PaddedAttention(batch, keys, values)
    hidden, inputs = context[batch.base], inputs[batch.base]
    for depth in range(depths):
        at = position[batch.base] + depth
        if depth:
            token = batch.next_token[(batch.base + depth).minimum(batch.last)]
            inputs = layer.inputs(frozen.embedding[token], hidden)
            key = rotate(attention.k_proj(inputs).view(kv_heads), frozen, at)
            attend.extend(key, attention.v_proj(inputs).view(kv_heads))
        query = rotate(attention.q_proj(inputs).view(heads), frozen, at)
        hidden = hidden + attention.o_proj(attend(query, row))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        label = batch.base + 1 + depth
        yield Depth(drafter.lm_head(drafter.norm(hidden)), label.minimum(batch.last), label <= batch.last)


def rotate(x: Tensor, frozen: Frozen, position: Tensor) -> Tensor:
    """Rotary embedding of [n, heads, head_dim] at [n] positions."""
    left, right = x.chunk(2, -1)
    turned = torch.cat([-right, left], -1)
    return x * frozen.cos[position][:, None] + turned * frozen.sin[position][:, None]


class PaddedAttention:
    """Attention of packed queries to their sequence's context and to their own earlier drafts."""

    def __init__(self, batch: Batch, keys: Tensor, values: Tensor) -> None:
        """keys, values: [n, kv heads, head_dim]."""
        self.rows = int(batch.row[-1]) + 1
        self.length = int(batch.position.max()) + 1
        self.slots = int(batch.slot.max()) + 1
        place = batch.row * self.length + batch.position
        self.keys = self._pad(keys, place, self.length)
        self.values = self._pad(values, place, self.length)
        self.slot = batch.row[batch.base] * self.slots + batch.slot
        start = torch.full((self.rows * self.slots,), self.length, device=keys.device)
        start[self.slot] = batch.position[batch.base]
        hidden = torch.arange(self.length, device=keys.device) > start.view(self.rows, 1, 1, self.slots, 1)
        self.mask = torch.zeros(hidden.shape, device=keys.device).masked_fill_(hidden, -torch.inf)
        self.drafts: list[tuple[Tensor, Tensor]] = []

    def extend(self, key: Tensor, value: Tensor) -> None:
        """Add one draft's key and value [b, kv heads, head_dim] to what each base sees."""
        padded = (self._pad(x, self.slot, self.slots).unsqueeze(2) for x in (key, value))
        self.drafts.append(tuple(padded))  # type: ignore[arg-type]

    def __call__(self, query: Tensor, row: Tensor) -> Tensor:
        """[b, heads, head_dim] -> [b, heads * head_dim]."""
        kv_heads, head_dim = self.keys.shape[1], self.keys.shape[3]
        q = self._pad(query, self.slot, self.slots) * head_dim**-0.5  # [rows, heads, slots, head_dim]
        q = q.view(self.rows, kv_heads, -1, self.slots, head_dim)  # query heads of one group lie together
        scores = [q @ self.keys.unsqueeze(2).transpose(-1, -2) + self.mask]
        scores += [(q * key).sum(-1, keepdim=True) for key, _ in self.drafts]
        weights = torch.cat(scores, -1).softmax(-1)
        out = weights[..., : self.length] @ self.values.unsqueeze(2)
        for index, (_, value) in enumerate(self.drafts):
            out = out + weights[..., self.length + index, None] * value
        packed = out.permute(0, 3, 1, 2, 4).reshape(self.rows * self.slots, -1)
        return packed[self.slot]

    def _pad(self, x: Tensor, place: Tensor, width: int) -> Tensor:
        """[n, heads, head_dim] -> [rows, heads, width, head_dim]."""
        padded = x.new_zeros(self.rows * width, *x.shape[1:]).index_copy(0, place, x)
        return padded.view(self.rows, width, *x.shape[1:]).transpose(1, 2)


def distillation_loss(
    drafter: Drafter, batch: Batch, frozen: Frozen, depths: int, decay: float
) -> tuple[Tensor, Tensor]:
    """(loss, acceptance [depths]): cross-entropy with the target's distribution over the draft vocabulary.

    Depth i weighs decay^i; labels outside the draft vocabulary are left out of the loss and count as rejected.
    """
    in_vocab = torch.zeros(len(frozen.embedding), dtype=torch.bool, device=batch.base.device)
    in_vocab[drafter.d2t] = True
    soft = F.linear(batch.final, frozen.head).float().softmax(-1)  # [n, draft vocabulary]
    loss, accepted = torch.zeros((), device=batch.base.device), []
    for index, depth in enumerate(unroll(drafter, batch, frozen, depths)):
        token = batch.next_token[depth.label]
        counted = depth.valid & in_vocab[token]
        log_p = depth.logits.float().log_softmax(-1)
        each = -(soft[depth.label] * log_p).sum(-1)
        loss = loss + decay**index * (each * counted).sum() / counted.sum().clamp(min=1)
        hit = (drafter.d2t[depth.logits.argmax(-1)] == token) & depth.valid
        accepted.append(hit.sum() / depth.valid.sum().clamp(min=1))
    return loss, torch.stack(accepted).detach()
