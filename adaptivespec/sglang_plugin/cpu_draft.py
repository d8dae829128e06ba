"""On a plain CPU: an EAGLE-3 draft step, without what SGLang prepares and wraps for whole models.

A draft head is one layer, so those preparations cost about as much as its arithmetic. The same submodules are called
here in the same order, so that SGLang's own EAGLE3 gains as the plugin does.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def around_forward(original: Callable[..., Any], runner: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook on ModelRunner.forward: takes over a plain draft head's decoding, and nothing else."""
    if (
        not runner.is_draft_worker
        or not batch.forward_mode.is_decode()
        or (args or kwargs)
        or not _is_plain(runner.model)
        # The target's three layers side by side, which the head's `fc` would narrow, come with a prefill only.
        or batch.spec_info.hidden_states.shape[-1] != runner.model.config.hidden_size
    ):
        return original(runner, batch, *args, **kwargs)
    from sglang.srt.model_executor.model_runner import ModelRunnerOutput

    runner.forward_pass_id += 1
    return ModelRunnerOutput(logits_output=_decode(runner.model, batch), can_run_graph=False)


def _is_plain(model: Any) -> bool:
    """One dense layer on one rank, with logits taken as they are."""
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.utils.common import require_mlp_sync

    return (
        type(model) is LlamaForCausalLMEagle3
        and len(model.model.layers) == 1
        and not model.model.is_mrope_enabled
        and get_parallel().tp_size == 1
        and not model.logits_processor.final_logit_softcapping
        and model.logits_processor.logit_scale is None
        and not require_mlp_sync()
    )


def _decode(model: Any, batch: Any) -> Any:
    """One new token per row of `batch`; returns SGLang's LogitsProcessorOutput with the next step's hidden states."""
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

    body, layer = model.model, model.model.layers[0]
    attention, mlp, hidden = layer.self_attn, layer.mlp, batch.spec_info.hidden_states
    embeds = torch.embedding(body.embed_tokens.weight, batch.input_ids)
    x = torch.cat((_norm(layer.input_layernorm, embeds), _norm(layer.hidden_norm, hidden)), dim=-1)
    q, k, v = torch.split(
        _linear(attention.qkv_proj, x), [attention.q_size, attention.kv_size, attention.kv_size], dim=-1
    )
    q, k = attention.rotary_emb.forward_native(batch.positions, q, k)
    x = attention.attn(q, k, v, batch)
    x, residual = layer.post_attention_layernorm.forward_native(_linear(attention.o_proj, x), hidden)
    x = _linear(mlp.down_proj, mlp.act_fn.forward_native(_linear(mlp.gate_up_proj, x)))
    x, residual = body.norm.forward_native(x, residual)
    logits = model.logits_processor._compute_lm_head(x, model.lm_head)
    return LogitsProcessorOutput(
        next_token_logits=logits[:, : model.config.draft_vocab_size],
        hidden_states=x if body.norm_output else residual,
    )


def _norm(norm: Any, x: Tensor) -> Tensor:
    out: Tensor = norm.forward_native(x)
    return out


def _linear(layer: Any, x: Tensor) -> Tensor:
    out: Tensor = layer.quant_method.apply(layer, x, layer.bias)
    return out
