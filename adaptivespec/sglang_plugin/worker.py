"""The worker: before each step it asks the policy for a shape and swaps the engine to it (paper section 3.1)."""

import logging
from typing import Any
from weakref import WeakKeyDictionary

from sglang.srt.managers.auxiliary_output import append_auxiliary_output
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

from adaptivespec.sglang_plugin import hooks, settings
from adaptivespec.sglang_plugin.accept_step import accepting
from adaptivespec.sglang_plugin.draft import AdaptiveDraftWorker, relay_topk
from adaptivespec.sglang_plugin.metrics import Metrics
from adaptivespec.sglang_plugin.requests import RequestState, new_state
from adaptivespec.sglang_plugin.shape_states import ShapeStates
from adaptivespec.sglang_plugin.step import StepOutput
from adaptivespec.shape import TreeShape
from adaptivespec.tree import DcsTree

logger = logging.getLogger(__name__)


class AdaptiveSpecWorker(EAGLEWorkerV2):  # type: ignore[misc]
    """EAGLE-3 with a shape per step and an accept rule per request."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        hooks.check()
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self.options = settings.server_options()
        self.shapes = self.options.tree.shapes()
        AdaptiveDraftWorker.adopt(self._draft_worker, relay_topk(self.options.tree))
        self.shape_states = ShapeStates(self)
        self.metrics = Metrics.create()
        # Keyed by SGLang's own object of the request, so that state goes when the request goes, however it ends.
        self._states: WeakKeyDictionary[Any, RequestState] = WeakKeyDictionary()

    def init_cuda_graphs(self) -> None:
        """Capture the start-up shape as SGLang does, then every other reachable one."""
        super().init_cuda_graphs()
        self.shape_states.build_all(self.shapes)

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        """One prefill as SGLang does it, or one step: choose the shape, swap, draft, verify under the rules."""
        mode = batch.forward_mode
        if mode.is_extend() or batch.is_extend_in_batch or mode.is_idle():
            return super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)
        states = [self.state_of(req) for req in batch.reqs]
        shape, dcs = self._choose(batch, states)
        self.shape_states.activate(shape)
        with accepting([state.options.rule for state in states]) as step:
            result = super().forward_batch_generation(batch, on_publish, grammar_barrier, pp_proxy_tensors)
        output = StepOutput(shape, dcs, states, result.accept_lens, step.promotions, self.metrics.count)
        logits_output = result.logits_output
        logits_output.auxiliary_device_output = append_auxiliary_output(logits_output.auxiliary_device_output, output)
        return result

    def state_of(self, req: Any) -> RequestState:
        """The request's state, made at its first step."""
        state = self._states.get(req)
        if state is None:
            state = self._states[req] = new_state(req.sampling_params)
        return state

    def finish(self, req: Any) -> RequestState:
        """The request's state for its last report; it is forgotten here."""
        state = self.state_of(req)
        del self._states[req]
        self.metrics.set_histories(len(self._states))
        return state

    def describe(self) -> dict[str, Any]:
        """What /server_info tells of the plugin."""
        return {
            "version": settings.plugin_version(),
            "options": self.options.to_dict(),
            "shapes": [shape.as_list() for shape in self.shapes],
            "graphs": self.shape_states.describe(),
            "histories": len(self._states),
        }

    def _choose(self, batch: Any, states: list[RequestState]) -> tuple[TreeShape, list[float | None]]:
        """The batch's shape, and each request's DCS."""
        tree = self.options.tree
        probs = batch.spec_info.topk_p.tolist() if tree.needs_probs else [[]] * len(states)
        signals = [tree.signal(p, state.history, state.options.d) for p, state in zip(probs, states, strict=True)]
        dcs: list[float | None] = list(signals) if isinstance(tree, DcsTree) else [None] * len(states)
        return tree.select(sum(signals) / len(signals)), dcs
