"""SGLang's EAGLE draft worker with two widths: what it hands on between steps, and what a step drafts.

A step's last forward yields the next step's first candidates, before the next shape is known. So it always keeps the
widest shape's top-k (SGLang would keep the current one's, and for chains not even the probability), and `draft` takes
what the shape at hand wants.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

from adaptivespec.tree import TreePolicy


def relay_topk(tree: TreePolicy) -> int:
    """Candidates that every step hands on: the widest shape's, and two where the policy reads their probabilities.

    For one candidate SGLang does not compute its probability and hands on 1.
    """
    widest = max(shape.topk for shape in tree.shapes())
    return max(widest, 2) if tree.needs_probs else widest


class AdaptiveDraftWorker(EagleDraftWorker):  # type: ignore[misc]
    """Made from SGLang's own object by `adopt`: EAGLEWorkerV2 builds its draft worker itself."""

    topk: int
    relay_topk: int
    _extend_parts: dict[int, tuple[Any, Any]]

    @classmethod
    def adopt(cls, worker: EagleDraftWorker, relay_topk: int) -> "AdaptiveDraftWorker":
        """Turn SGLang's draft worker into this class; `relay_topk` as the function of that name says."""
        worker.__class__ = cls
        worker.relay_topk = relay_topk
        worker._extend_parts = {}
        adopted: AdaptiveDraftWorker = worker
        return adopted

    @contextmanager
    def _at_relay_width(self) -> Iterator[None]:
        topk = self.topk
        self.topk = self.relay_topk
        try:
            yield
        finally:
            self.topk = topk

    def _draft_extend_for_prefill(self, *args: Any, **kwargs: Any) -> Any:
        with self._at_relay_width():
            return super()._draft_extend_for_prefill(*args, **kwargs)

    def _draft_extend_for_decode(self, *args: Any, **kwargs: Any) -> None:
        with self._at_relay_width():
            super()._draft_extend_for_decode(*args, **kwargs)

    def draft(self, batch: Any, **kwargs: Any) -> Any:
        """Draft one tree per request from the relayed candidates' first `topk`."""
        relayed = batch.spec_info
        if relayed.topk_p.shape[1] > self.topk:
            relayed.topk_p = relayed.topk_p[:, : self.topk].contiguous()
            relayed.topk_index = relayed.topk_index[:, : self.topk].contiguous()
        return super().draft(batch, **kwargs)

    def _capture_cuda_graphs(self) -> None:
        """Capture this shape's graphs; draft-extend depends on num_draft_tokens alone and is shared by those equal."""
        shared = self._extend_parts.get(self.speculative_num_draft_tokens)
        if shared is not None:
            self.draft_extend_attn_backend = None  # SGLang captures no draft-extend graph then
        super()._capture_cuda_graphs()
        if shared is not None:
            self.draft_extend_attn_backend, self.cuda_graph_runner_for_draft_extend = shared
            self.draft_runner.attn_backend = self.draft_extend_attn_backend
        elif self.draft_extend_attn_backend is not None:
            parts = (self.draft_extend_attn_backend, self.cuda_graph_runner_for_draft_extend)
            self._extend_parts[self.speculative_num_draft_tokens] = parts
