"""One engine state per reachable shape, and the swap between them.

SGLang's own adaptive mode keys its states by the number of steps and knows chains only; here the key is the whole
triplet, so top-k is set with the rest wherever SGLang reads it.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.adaptive_runtime_state import SpecRuntimeState
from sglang.srt.speculative.spec_utils import draft_tp_context
from sglang.srt.utils.common import get_available_gpu_memory

from adaptivespec.shape import TreeShape

logger = logging.getLogger(__name__)

_CHAIN_BUFFERS = ("_topk1_parents_prealloc", "_topk1_score_indices_prealloc")


@dataclass(frozen=True)
class _ShapeState:
    runtime: SpecRuntimeState
    chain_buffers: dict[str, Any]
    """The draft worker's constant links of a chain; empty for a tree."""
    build_s: float | None = None
    memory_gib: float | None = None
    """What building took beyond what other shapes share; None for the start-up shape, which SGLang itself builds."""


class ShapeStates:
    """Builds and swaps the states of one EAGLEWorkerV2, whose attributes it sets."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._states: dict[TreeShape, _ShapeState] = {}
        self._verify_parts: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._active: TreeShape | None = None

    def build_all(self, shapes: Sequence[TreeShape]) -> None:
        """Build every shape's state; the first is the start-up shape, whose parts SGLang has made already."""
        draft = self._worker._draft_worker
        target = self._worker._target_worker.model_runner
        start = shapes[0]
        self._verify_parts[start.num_draft_tokens, start.topk] = (target.attn_backend, target.decode_cuda_graph_runner)
        self._states[start] = self._collect(start)
        with (
            draft_tp_context(draft.parallel_layout),
            speculative_moe_backend_context(),
            speculative_moe_a2a_backend_context(),
        ):
            for shape in shapes[1:]:
                self._states[shape] = self._build(shape)
        self._set_triplet(start)
        self.activate(start)

    def describe(self) -> list[dict[str, Any]]:
        """Per shape: which of its three forwards have CUDA graphs, and what building it took (seconds, GiB)."""
        return [
            {
                "shape": shape.as_list(),
                "draft_graph": state.runtime.cuda_graph_runner is not None,
                "verify_graph": state.runtime.target_graph_runner is not None,
                "extend_graph": state.runtime.cuda_graph_runner_for_draft_extend is not None,
                "build_s": state.build_s,
                "memory_gib": state.memory_gib,
            }
            for shape, state in self._states.items()
        ]

    def activate(self, shape: TreeShape) -> None:
        """Make the engine draft and verify trees of this shape from now on."""
        if shape == self._active:
            return
        state = self._states[shape]
        self._set_triplet(shape)
        draft = self._worker._draft_worker
        runtime = state.runtime
        draft.draft_attn_backend = runtime.draft_attn_backend
        draft.draft_runner.draft_attn_backend = runtime.draft_attn_backend
        draft.cuda_graph_runner = runtime.cuda_graph_runner
        draft.draft_extend_attn_backend = runtime.draft_extend_attn_backend
        if runtime.draft_extend_attn_backend is not None:
            draft.draft_runner.attn_backend = runtime.draft_extend_attn_backend
        draft.cuda_graph_runner_for_draft_extend = runtime.cuda_graph_runner_for_draft_extend
        for name, value in state.chain_buffers.items():
            setattr(draft, name, value)
        target = self._worker._target_worker.model_runner
        target.attn_backend = runtime.target_attn_backend
        target.decode_cuda_graph_runner = runtime.target_graph_runner
        self._active = shape

    def _set_triplet(self, shape: TreeShape) -> None:
        """Write the triplet everywhere SGLang reads it.

        Straight into the config leaves: SGLang's `override` would append to a log at every swap, for ever.
        """
        triplet = {
            "speculative_num_steps": shape.num_steps,
            "speculative_eagle_topk": shape.topk,
            "speculative_num_draft_tokens": shape.num_draft_tokens,
        }
        spec = get_spec()
        for name, value in triplet.items():
            spec._set(name, value)
        for worker in (self._worker, self._worker._draft_worker):
            worker.topk = shape.topk
            worker.speculative_num_steps = shape.num_steps
            worker.speculative_num_draft_tokens = shape.num_draft_tokens

    def _build(self, shape: TreeShape) -> _ShapeState:
        worker, draft = self._worker, self._worker._draft_worker
        start_s, free_gib = time.perf_counter(), get_available_gpu_memory(worker.device, worker.gpu_id)
        # Set before SGLang's scope opens, because it rebuilds the chain links of what it restores when it closes.
        self._set_triplet(shape)
        with worker._override_worker_state(shape.num_steps, shape.num_draft_tokens):
            draft.init_attention_backend()
            draft._capture_cuda_graphs()
            state = self._collect(shape)
        took_s = time.perf_counter() - start_s
        used_gib = free_gib - get_available_gpu_memory(worker.device, worker.gpu_id)
        logger.info("Shape (%s) ready: %.2f s, %.2f GiB", shape, took_s, used_gib)
        return replace(state, build_s=took_s, memory_gib=used_gib)

    def _collect(self, shape: TreeShape) -> _ShapeState:
        """The draft worker's parts as they stand now, with the target's."""
        draft = self._worker._draft_worker
        target_backend, target_graphs = self._verify_part(shape)
        runtime = SpecRuntimeState(
            speculative_num_steps=shape.num_steps,
            speculative_num_draft_tokens=shape.num_draft_tokens,
            draft_attn_backend=draft.draft_attn_backend,
            cuda_graph_runner=draft.cuda_graph_runner,
            target_attn_backend=target_backend,
            target_graph_runner=target_graphs,
            draft_extend_attn_backend=draft.draft_extend_attn_backend,
            cuda_graph_runner_for_draft_extend=draft.cuda_graph_runner_for_draft_extend,
        )
        names = _CHAIN_BUFFERS if shape.is_chain else ()
        return _ShapeState(runtime, {name: getattr(draft, name) for name in names})

    def _verify_part(self, shape: TreeShape) -> tuple[Any, Any]:
        """The target's attention backend and graphs; they depend on num_draft_tokens and topk alone."""
        key = (shape.num_draft_tokens, shape.topk)
        if key not in self._verify_parts:
            target = self._worker._target_worker.model_runner
            own_workspace = target.init_new_workspace
            try:
                backend = target._get_attention_backend(init_new_workspace=True)
            finally:
                target.init_new_workspace = own_workspace
            graphs = None
            if not check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):
                graphs = DecodeCudaGraphRunner(
                    target,
                    attn_backend=backend,
                    speculative_num_steps=shape.num_steps,
                    speculative_num_draft_tokens=shape.num_draft_tokens,
                )
            self._verify_parts[key] = (backend, graphs)
        return self._verify_parts[key]
