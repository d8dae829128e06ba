"""The target's features over training sequences, computed a shard at a time and kept on disk.

A position's feature is the input of the target's layers [2, L // 2, L - 3] side by side (what SGLang hands to an EAGLE-3
head); its last hidden state after the final norm gives the soft labels.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adaptivespec.demo.drafter import feature_layers
from adaptivespec.demo.sequences import Generation, fingerprint

BATCH_POSITIONS = 2048


@dataclass(frozen=True)
class Featured:
    """A generation with what the target computed over it, position by position (the last token has none)."""

    ids: Tensor
    """[n] int64."""
    prompt_length: int
    features: Tensor
    """[n - 1, 3 hidden], bfloat16."""
    final: Tensor
    """[n - 1, hidden], bfloat16."""

    @property
    def trained(self) -> int:
        """Positions that a drafter is trained on."""
        return len(self.ids) - self.prompt_length - 1


def product_dtype(device: torch.device) -> torch.dtype:
    """What matrix products are fastest in: bfloat16, but float32 on a CPU without instructions for it."""
    slow = device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported()
    return torch.float32 if slow else torch.bfloat16


def load_target(folder: str, device: torch.device) -> Any:
    """A frozen causal language model, in the device's `product_dtype`."""
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(folder, dtype=product_dtype(device)).to(device).eval()
    return target.requires_grad_(False)


def target_fingerprint(target: Any) -> str:
    """SHA-256 over some of every weight, in bfloat16: one for a model on CPU and CUDA, another for another checkpoint."""
    digest = hashlib.sha256()
    for name, values in (*target.named_parameters(), *target.named_buffers()):  # a buffer holds the rotary frequencies
        some = values.detach().flatten()[:16].to("cpu", torch.bfloat16)
        digest.update(repr((name, tuple(values.shape), some.tolist())).encode())
    return digest.hexdigest()


def load_or_compute(target: Any, shard: Sequence[Generation], folder: Path) -> list[Featured]:
    """The shard's features from its file in `folder`, computed and written (atomically) where that is missing.

    The file is named by the shard's content, so that other data never finds it; one folder is one target's.
    """
    from safetensors.torch import load_file, save_file

    cache = folder / f"{fingerprint(shard)[:16]}.safetensors"
    if not cache.exists():
        features, final = compute(target, shard)
        folder.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(f".{os.getpid()}")  # two processes may compute the same shard
        save_file({"features": features, "final": final}, partial)
        os.replace(partial, cache)
    stored = load_file(cache)
    lengths = [len(generation.ids) - 1 for generation in shard]
    pieces = zip(shard, stored["features"].split(lengths), stored["final"].split(lengths), strict=True)
    return [Featured(torch.tensor(g.ids), len(g.prompt_ids), *tensors) for g, *tensors in pieces]


@torch.no_grad()
def compute(target: Any, shard: Sequence[Generation]) -> tuple[Tensor, Tensor]:
    """(features, final) of all positions but each sequence's last, in the shard's order, on CPU in bfloat16."""
    layers = feature_layers(target.config.num_hidden_layers)
    done: dict[int, tuple[Tensor, Tensor]] = {}
    for batch in _by_length(shard):
        length = max(len(shard[index].ids) - 1 for index in batch)
        ids = torch.zeros(len(batch), length, dtype=torch.long)
        for row, index in enumerate(batch):
            ids[row, : len(shard[index].ids) - 1] = torch.tensor(shard[index].ids[:-1])
        # Attention is causal, so padding on the right changes nothing before it.
        states = target.model(ids.to(target.device), output_hidden_states=True, use_cache=False).hidden_states
        features = torch.cat([states[layer] for layer in layers], -1).to("cpu", torch.bfloat16)
        final = states[-1].to("cpu", torch.bfloat16)
        for row, index in enumerate(batch):
            n = len(shard[index].ids) - 1
            done[index] = features[row, :n], final[row, :n]
    ordered = [done[index] for index in range(len(shard))]
    return torch.cat([f for f, _ in ordered]), torch.cat([h for _, h in ordered])


def _by_length(shard: Sequence[Generation]) -> list[list[int]]:
    """Indices in batches of about `BATCH_POSITIONS` positions and like lengths."""
    batches: list[list[int]] = [[]]
    for index in sorted(range(len(shard)), key=lambda i: len(shard[i].ids)):
        if batches[-1] and (len(batches[-1]) + 1) * len(shard[index].ids) > BATCH_POSITIONS:
            batches.append([])
        batches[-1].append(index)
    return batches
