"""The EAGLE-3 draft head: one decoder layer over the target's features, in the layout that SGLang loads.

Parameters carry SGLang's names (`LlamaForCausalLMEagle3`), so that a state dict is a checkpoint. After EAGLE-3
(arXiv:2503.01840), section 3.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 3
"""How many layers' inputs make a feature."""


def feature_layers(num_layers: int) -> tuple[int, int, int]:
    """The layers whose inputs SGLang captures for EAGLE-3: a low, a middle and a high one."""
    return (2, num_layers // 2, num_layers - 3)


@dataclass(frozen=True)
class Shape:
    """Sizes of the head; all but the draft vocabulary are the target's."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    draft_vocab: int

    @staticmethod
    def of(config: Any, draft_vocab: int) -> "Shape":
        """From a Llama-like transformers configuration."""
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Shape(
            config.hidden_size,
            config.intermediate_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            head_dim,
            config.rms_norm_eps,
            draft_vocab,
        )


class Attention(nn.Module):
    """The four projections; adaptivespec.demo.unroll attends."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = 2 * shape.hidden  # the token's embedding beside the feature
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """The decoder layer's parts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.hidden_norm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = MLP(shape)

    def inputs(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """[n, hidden] each -> [n, 2 hidden], what the projections read."""
        return torch.cat([self.input_layernorm(embedding), self.hidden_norm(hidden)], -1)


class Drafter(nn.Module):
    """The head. `d2t` [draft vocabulary]: the target's token id of every draft id, ascending."""

    d2t: Tensor

    def __init__(self, shape: Shape, d2t: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(FEATURES * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Layer(shape)
        self.norm = nn.RMSNorm(shape.hidden, shape.norm_eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab, bias=False)
        self.register_buffer("d2t", d2t)


def init_from_target(target: Any, d2t: Tensor, seed: int) -> Drafter:
    """A head that starts as the target's last layer reading its highest feature; the embedding's half starts small."""
    torch.manual_seed(seed)
    drafter = Drafter(Shape.of(target.config, len(d2t)), d2t)
    last, hidden = target.model.layers[-1], target.config.hidden_size
    for parameter in drafter.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    with torch.no_grad():
        drafter.fc.weight.mul_(0.2)[:, -hidden:] += torch.eye(hidden)
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(drafter.midlayer.self_attn, name).weight[:, hidden:] = getattr(last.self_attn, name).weight
        drafter.midlayer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
        drafter.midlayer.mlp.load_state_dict({k: v for k, v in last.mlp.state_dict().items() if "weight" in k})
        drafter.midlayer.hidden_norm.weight.copy_(last.input_layernorm.weight)
        drafter.midlayer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        drafter.norm.weight.copy_(target.model.norm.weight)
        drafter.lm_head.weight.copy_(target.lm_head.weight[d2t])
    return drafter


def load_drafter(folder: Path, target: Any) -> Drafter:
    """Load what `save_drafter` wrote, in float32."""
    from safetensors.torch import load_file

    state = load_file(folder / "model.safetensors")
    state.pop("t2d")
    state["d2t"] = state["d2t"] + torch.arange(len(state["d2t"]))
    drafter = Drafter(Shape.of(target.config, len(state["d2t"])), state["d2t"])
    drafter.load_state_dict(state)
    return drafter.float()


def with_vocabulary(drafter: Drafter, target: Any, d2t: Tensor) -> Drafter:
    """The same head with draft vocabulary `d2t`: known tokens keep their row of the head, new ones take the target's."""
    head = target.lm_head.weight.detach()[d2t].to("cpu", torch.float32)
    place = {token: row for row, token in enumerate(drafter.d2t.tolist())}
    known = [(row, place[token]) for row, token in enumerate(d2t.tolist()) if token in place]
    if known:
        rows, old = torch.tensor(known).unbind(1)
        head[rows] = drafter.lm_head.weight.detach()[old]
    changed = Drafter(Shape.of(target.config, len(d2t)), d2t)
    changed.load_state_dict({**drafter.state_dict(), "d2t": d2t, "lm_head.weight": head})
    return changed


def save_drafter(drafter: Drafter, target_config: Any, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json and model.safetensors as SGLang loads them (d2t as offsets, t2d as a mask).

    What float16 cannot hold is rounded to it first (values below 1e-5), so that a CPU may keep either type.
    """
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    state = {name: p.detach().cpu().half().to(dtype).contiguous() for name, p in drafter.named_parameters()}
    d2t = drafter.d2t.cpu()
    state["d2t"] = d2t - torch.arange(len(d2t))
    state["t2d"] = torch.zeros(target_config.vocab_size, dtype=torch.bool).index_fill_(0, d2t, True)
    # Not safetensors' own save_file, which lets nobody but the owner read what it writes.
    (folder / "model.safetensors").write_bytes(save(state))
    config = {
        **target_config.to_diff_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": len(d2t),
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }
    for name in ("_name_or_path", "_model_name_or_path"):  # a path of this machine, or a converter's title
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
