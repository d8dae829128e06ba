"""Targets and EAGLE-3 drafters of real models' shapes with random weights that still agree most of the time.

    python -c "from pathlib import Path; from runners.gpu_check import models; models.make(models.SHAPES['tiny'], Path('m'), 'cpu')"

Tokens lie on one long random cycle. Every token's embedding carries a code, a random vector of +-1, and the head holds each
code in two rows: in its successor's, and a little weaker in that of a runner-up. The layers are random and their
residual projections shrunk, so that they only add noise of a set size, which depends on the context: now and then the runner-up
wins, and a fault in attention or KV cache changes the output. The drafter reads the same code off the token, without the noise,
and prefers the runner-up for a set share of tokens. So drafts are accepted, rejected and promoted at all depths.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CONSTANT = 2.0
"""Embedding dimension 0: what the drafter's attention finds its own position with."""
TARGET_TOP, DRAFT_TOP = 12.0, 14.0
"""Logit of the successor, in nats over an unrelated token's."""
TARGET_GAPS, DRAFT_GAPS = (0.5, 3.0), (0.3, 3.0)
"""Range of the runner-up's distance below it, in nats; one draw per token."""
NOISE_NATS = 0.8
"""Standard deviation of what the layers add to the distance between two logits."""
RIGHT_RATE = 0.8
"""Share of tokens for which the drafter prefers the successor."""
COPY = 30.0
SUBLAYER_RMS = 0.67  # of attention's and MLP's outputs together, before the residual projections, for unit input
SEED = 0
MAKER = 2
"""Raise it when the same settings give other weights."""


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a target and of its drafter."""

    name: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    draft_vocabulary: int
    rope_theta: float
    code: int
    """Dimensions of a token's code: below `hidden`, at most `kv_heads * head_dim`, which must carry it."""

    @property
    def weights_gib(self) -> float:
        """Size of the target in bfloat16."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        per_layer = attention + 3 * self.hidden * self.intermediate
        return 2 * (self.layers * per_layer + 2 * self.vocabulary * self.hidden) / 2**30


_TINY = {
    "layers": 8, "hidden": 256, "intermediate": 512, "heads": 4, "kv_heads": 2, "head_dim": 128, "vocabulary": 1000,
    "draft_vocabulary": 900, "rope_theta": 500000.0, "code": 192,
}  # fmt: skip
_EIGHT = {
    "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "draft_vocabulary": 32000, "code": 1024,
}  # fmt: skip
SHAPES = {
    shape.name: shape
    for shape in (
        ModelShape("tiny", "llama", **_TINY),  # type: ignore[arg-type]
        ModelShape("tiny_qwen3", "qwen3", **_TINY),  # type: ignore[arg-type]
        ModelShape("llama31_8b", "llama", layers=32, intermediate=14336, vocabulary=128256, rope_theta=500000.0, **_EIGHT),
        ModelShape("qwen3_8b", "qwen3", layers=36, intermediate=12288, vocabulary=151936, rope_theta=1000000.0, **_EIGHT),
    )
}  # fmt: skip
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class TokenMap:
    """What follows what."""

    kept: Tensor
    """[n] int64, ascending: the tokens that come up, all in the drafter's vocabulary."""
    successor: Tensor
    """[n] int64: index into `kept` of each one's successor; one cycle through all."""
    runner_up: Tensor
    """[n] int64: index into `kept` of each one's runner-up."""


@dataclass(frozen=True)
class Pair:
    """Where a target and its drafter lie."""

    shape: ModelShape
    target: Path
    draft: Path
    tokens: tuple[int, ...]
    """Tokens that prompts may be made of."""


def make(shape: ModelShape, folder: Path, device: str, dtype: torch.dtype = torch.bfloat16) -> Pair:
    """Write both checkpoints below `folder` unless they are there, complete and made with the same settings."""
    token_map = make_token_map(shape)
    root = folder / shape.name
    pair = Pair(shape, root / "target", root / "draft", tuple(token_map.kept.tolist()))
    settings = {**asdict(shape), "dtype": str(dtype), "device": device, **_settings()}
    stamp = root / "complete.json"
    if not stamp.is_file() or json.loads(stamp.read_text()) != settings:
        stamp.unlink(missing_ok=True)
        _write(shape, pair, token_map, torch.device(device), dtype)
        stamp.write_text(json.dumps(settings, indent=1))
    return pair


def _settings() -> dict[str, Any]:
    values = (CONSTANT, TARGET_TOP, DRAFT_TOP, *TARGET_GAPS, *DRAFT_GAPS, NOISE_NATS, RIGHT_RATE, COPY, SEED, MAKER)
    return {"settings": list(values)}


def make_token_map(shape: ModelShape) -> TokenMap:
    """The same on every machine: drawn on the CPU."""
    random = torch.Generator().manual_seed(SEED)
    # Kept out: the lowest ids, in a small vocabulary the special tokens, and the last, whose logprobs SGLang replaces by id 0's.
    kept = (torch.randperm(shape.vocabulary - 4, generator=random)[: shape.draft_vocabulary] + 3).sort().values
    order = torch.randperm(len(kept), generator=random)
    successor, runner_up = torch.empty_like(order), torch.empty_like(order)
    successor[order] = order.roll(-1)
    runner_up[order] = order.roll(-len(order) // 2 + 7)
    return TokenMap(kept, successor, runner_up)


def _write(shape: ModelShape, pair: Pair, token_map: TokenMap, device: torch.device, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(SEED + 1)
    codes = torch.randint(0, 2, (shape.vocabulary, shape.code), generator=random, dtype=torch.int8) * 2.0 - 1.0
    codes = codes.to(device)
    files = _target(shape, token_map, codes, device, dtype)
    config = _config(shape, dtype)
    _save(pair.target, {**config, "architectures": [_ARCHITECTURES[shape.architecture]]}, files)
    draft_config = {
        **config,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": shape.draft_vocabulary,
        # Else each drafted token's code would stay in the residual stream, as strong as the next one's.
        "norm_output": True,
    }
    _save(pair.draft, draft_config, iter([("model", lambda: _drafter(shape, token_map, codes, dtype))]))
    _tokenizer(shape).save_pretrained(pair.target)


def _config(shape: ModelShape, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "model_type": shape.architecture,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope_theta": shape.rope_theta,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


Weights = dict[str, Tensor]
Files = Iterator[tuple[str, Any]]


def _target(shape: ModelShape, token_map: TokenMap, codes: Tensor, device: torch.device, dtype: torch.dtype) -> Files:
    """(file name, function that makes its weights), so that one file's weights are in memory at a time."""
    noise = NOISE_NATS * math.sqrt(shape.code) / (2 * TARGET_TOP)  # per dimension, at the last layer
    final_rms = math.sqrt((shape.code + CONSTANT**2) / shape.hidden + noise**2)

    def ends() -> Weights:
        embedding = torch.zeros(shape.vocabulary, shape.hidden, device=device, dtype=dtype)
        embedding[:, 0] = CONSTANT
        embedding[:, 1 : shape.code + 1] = codes
        random = torch.Generator().manual_seed(SEED + 2)
        gaps = torch.empty(len(token_map.kept)).uniform_(*TARGET_GAPS, generator=random).to(device)
        strengths = torch.stack([torch.ones_like(gaps), 1 - gaps / TARGET_TOP])
        rows = _head(shape, token_map, codes, strengths) * (TARGET_TOP * final_rms / shape.code)
        head = torch.zeros(shape.vocabulary, shape.hidden, device=device, dtype=dtype)
        head[token_map.kept.to(device)] = rows.to(dtype)
        norm = torch.ones(shape.hidden, dtype=dtype)
        return {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": norm}

    yield "ends", ends
    residual = noise / (SUBLAYER_RMS * math.sqrt(shape.layers))
    for number in range(shape.layers):
        yield f"layer-{number:02}", lambda number=number: _layer(shape, number, residual, device, dtype)


def _layer(shape: ModelShape, number: int, residual: float, device: torch.device, dtype: torch.dtype) -> Weights:
    """Random, scaled so that activations have unit size, and the residual projections' outputs `residual` times that."""
    random = torch.Generator(device).manual_seed(SEED + 100 + number)

    def normal(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        weight = torch.empty(rows, columns, device=device, dtype=dtype)
        return weight.normal_(0.0, scale / math.sqrt(columns), generator=random)

    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {
        "self_attn.q_proj": normal(wide, shape.hidden),
        "self_attn.k_proj": normal(narrow, shape.hidden),
        "self_attn.v_proj": normal(narrow, shape.hidden),
        "self_attn.o_proj": normal(shape.hidden, wide, residual),
        "mlp.gate_proj": normal(shape.intermediate, shape.hidden),
        "mlp.up_proj": normal(shape.intermediate, shape.hidden),
        "mlp.down_proj": normal(shape.hidden, shape.intermediate, residual),
        "input_layernorm": torch.ones(shape.hidden, dtype=dtype),
        "post_attention_layernorm": torch.ones(shape.hidden, dtype=dtype),
    }
    if shape.architecture == "qwen3":
        weights |= {f"self_attn.{name}_norm": torch.ones(shape.head_dim, dtype=dtype) for name in "qk"}
    return {f"model.layers.{number}.{name}.weight": weight for name, weight in weights.items()}


def _head(shape: ModelShape, token_map: TokenMap, codes: Tensor, strengths: Tensor) -> Tensor:
    """[n, hidden]: rows of the kept tokens. `strengths` [2, n]: of each token's code in its successor's and runner-up's row."""
    own = codes[token_map.kept.to(codes.device)]
    rows = torch.zeros(len(own), shape.hidden, device=codes.device)
    for index, strength in zip((token_map.successor, token_map.runner_up), strengths, strict=True):
        rows[index.to(codes.device), 1 : shape.code + 1] += own * strength[:, None]
    return rows


def _drafter(shape: ModelShape, token_map: TokenMap, codes: Tensor, dtype: torch.dtype) -> Weights:
    """One layer that attends to its own position and copies the token's code to where the head reads it."""
    device, count = codes.device, len(token_map.kept)
    random = torch.Generator().manual_seed(SEED + 3)
    gaps = torch.empty(count).uniform_(*DRAFT_GAPS, generator=random)
    right = torch.rand(count, generator=random) < RIGHT_RATE
    weaker = 1 - gaps / DRAFT_TOP
    strengths = torch.stack([torch.where(right, 1.0, weaker), torch.where(right, weaker, 1.0)]).to(device)
    code_rms = math.sqrt(shape.code / shape.hidden)
    head = _head(shape, token_map, codes, strengths) * (DRAFT_TOP * code_rms / shape.code)
    in_target = torch.zeros(shape.vocabulary, dtype=torch.bool)
    in_target[token_map.kept] = True
    ones = torch.ones(shape.hidden, dtype=dtype)
    layer = {name.split(".", 3)[3]: weight for name, weight in _layer(shape, 0, 1.0, device, dtype).items()}
    layer = {name: weight for name, weight in layer.items() if name.startswith("mlp.") or "layernorm" in name}
    layer |= {"hidden_norm.weight": ones, **_copying_attention(shape, device, dtype)}
    return {
        **{f"midlayer.{name}": weight for name, weight in layer.items()},
        "fc.weight": torch.eye(shape.hidden, 3 * shape.hidden, device=device, dtype=dtype) * 0.1,
        "norm.weight": ones.clone(),
        "lm_head.weight": head.to(dtype),
        "d2t": token_map.kept - torch.arange(count),
        "t2d": in_target,
    }


def _copying_attention(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Weights:
    """Equal queries and keys in the fast rotary frequencies score highest at distance 0; values carry the code."""
    width, size, group = shape.kv_heads * shape.head_dim, shape.head_dim, shape.heads // shape.kv_heads
    embedded_constant = CONSTANT / math.sqrt((shape.code + CONSTANT**2) / shape.hidden)
    fast = size // 8
    # exp(-20 * (1 - cos)) summed over the frequencies leaves nothing to the neighbour at distance 1.
    query = math.sqrt(20 * math.sqrt(size)) / embedded_constant
    weights = {}
    for name, heads in (("q_proj", shape.heads), ("k_proj", shape.kv_heads)):
        weight = torch.zeros(heads, size, 2 * shape.hidden, device=device, dtype=dtype)
        weight[:, :fast, 0] = query
        weights[f"self_attn.{name}.weight"] = weight.view(heads * size, 2 * shape.hidden)
    value = torch.zeros(width, 2 * shape.hidden, device=device, dtype=dtype)
    value[:, 1 : shape.code + 1] = torch.eye(width, shape.code, device=device)
    out = torch.zeros(shape.hidden, shape.heads, size, device=device, dtype=dtype)
    for head in range(shape.kv_heads):
        dims = torch.arange(head * size, min((head + 1) * size, shape.code), device=device)
        out[1 + dims, head * group, dims - head * size] = COPY
    weights["self_attn.v_proj.weight"] = value
    weights["self_attn.o_proj.weight"] = out.view(shape.hidden, shape.heads * size)
    return weights


def _save(folder: Path, config: dict[str, Any], files: Files) -> None:
    """Write the config and one safetensors file per part, a few at a time."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.safetensors*"):
        stale.unlink()
    (folder / "config.json").write_text(json.dumps(config, indent=1))

    def write(part: tuple[str, Any]) -> dict[str, str]:
        name, weigh = part
        weights = {key: weight.contiguous().cpu() for key, weight in weigh().items()}
        save_file(weights, folder / f"{name}.safetensors", metadata={"format": "pt"})
        return dict.fromkeys(weights, f"{name}.safetensors")

    with ThreadPoolExecutor(4) as pool:
        placed = {key: name for part in pool.map(write, files) for key, name in part.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


def _tokenizer(shape: ModelShape) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = WordLevel({f"t{i}": i for i in range(shape.vocabulary)}, unk_token="t2")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="t0", eos_token="t1", unk_token="t2")
