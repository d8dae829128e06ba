"""A target and an EAGLE-3 drafter of a few kilobytes that agree most of the time, written by hand.

Each token's successor is fixed by a permutation, which both read off the token's code: a vector of +-1. The target's
layers add noise to it, so that it sometimes answers otherwise, more or less surely; the drafter knows the
permutation only. So walks are accepted, rejected and promoted at all depths, in a model that serves in no time.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import PreTrainedTokenizerFast

VOCABULARY, DRAFT_VOCABULARY = 300, 280
HIDDEN, CODE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 32, 8, 4, 2, 16, 128
NOISE, SHARPNESS = 0.095, 0.2

_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "attention_bias": False,
}
_SHAPES = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}


def write(folder: Path) -> tuple[Path, Path]:
    """Write both checkpoints under `folder`; return (target, drafter)."""
    random = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2, (VOCABULARY, CODE), generator=random) * 2.0 - 1.0
    successor = torch.randperm(VOCABULARY, generator=random)
    embedding = torch.zeros(VOCABULARY, HIDDEN)
    embedding[:, 0] = 2.0  # a constant that the drafter's attention finds its position with
    embedding[:, 1 : CODE + 1] = codes
    head = torch.zeros(VOCABULARY, HIDDEN)
    head[successor, 1 : CODE + 1] = codes * SHARPNESS
    head[:2] = 0.0  # the special tokens never come up, so that outputs end where a test says
    target, drafter = folder / "target", folder / "drafter"
    _save(target, _CONFIG, _target(embedding, head, random))
    # Ids 0 and 1 are special, so that the drafter's vocabulary is not simply the first ids of the target's.
    kept = torch.arange(2, 2 + DRAFT_VOCABULARY)
    _save(
        drafter,
        {
            **_CONFIG,
            "architectures": ["LlamaForCausalLMEagle3"],
            "num_hidden_layers": 1,
            "draft_vocab_size": DRAFT_VOCABULARY,
        },
        _drafter(head, kept),
    )
    _tokenizer().save_pretrained(target)
    return target, drafter


def _target(embedding: Tensor, head: Tensor, random: torch.Generator) -> dict[str, Tensor]:
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, shape in _SHAPES.items():
            weights[f"{prefix}{name}.weight"] = torch.randn(shape, generator=random) * NOISE
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = torch.ones(HIDDEN)
    return weights


def _drafter(head: Tensor, kept: Tensor) -> dict[str, Tensor]:
    """One layer that attends to its own position and copies the token's code to where the head reads it."""
    layer = {name: torch.zeros(shape) for name, shape in _SHAPES.items()}
    for name, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS), ("v_proj", KV_HEADS)):
        layer[f"self_attn.{name}"] = torch.zeros(heads * HEAD_DIM, 2 * HIDDEN)
    # Equal queries and keys in the fast rotary frequencies: the score is highest at distance 0.
    for name, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
        layer[f"self_attn.{name}"].view(heads, HEAD_DIM, 2 * HIDDEN)[:, :4, 0] = 6.0
    layer["self_attn.v_proj"][:, 1 : CODE + 1] = torch.eye(KV_HEADS * HEAD_DIM, CODE)
    copied = layer["self_attn.o_proj"].view(HIDDEN, HEADS, HEAD_DIM)
    for kv_head in range(KV_HEADS):
        rows = slice(1 + kv_head * HEAD_DIM, 1 + (kv_head + 1) * HEAD_DIM)
        copied[rows, kv_head * (HEADS // KV_HEADS)] = torch.eye(HEAD_DIM) * 30.0
    weights = {f"midlayer.{name}.weight": weight for name, weight in layer.items()}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"midlayer.{name}.weight"] = torch.ones(HIDDEN)
    in_target = torch.zeros(VOCABULARY, dtype=torch.bool)
    in_target[kept] = True
    return {
        **weights,
        "fc.weight": torch.eye(HIDDEN, 3 * HIDDEN) * 0.1,
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head[kept].contiguous(),
        "d2t": kept - torch.arange(DRAFT_VOCABULARY),
        "t2d": in_target,
    }


def _tokenizer() -> PreTrainedTokenizerFast:
    words = WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t2")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="t0", eos_token="t1", unk_token="t2")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return fast


def _save(folder: Path, config: dict[str, object], weights: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
