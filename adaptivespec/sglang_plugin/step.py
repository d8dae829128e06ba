"""From a verify step on the device to what each request committed, on the host.

SGLang copies auxiliary outputs to the host with the step's other results and then calls `consume` with the tokens
that became visible: behind a stop token, a length cap or a grammar's end nothing is committed, nothing is counted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from adaptivespec.sglang_plugin.requests import Promotion, RequestState, StepRecord
from adaptivespec.shape import TreeShape


@dataclass(frozen=True)
class StepOutput:
    """One verify step of a batch; implements SGLang's DeviceAuxiliaryOutput and HostAuxiliaryOutput."""

    shape: TreeShape
    dcs: Sequence[float | None]
    """One per request; None under policies other than DCS."""
    states: Sequence[RequestState]
    accept_lens: Tensor
    """[B]: drafts accepted, plus 1."""
    promotions: Tensor | None
    """[5, B, n], see accept_step.PROMOTION_FIELDS."""
    count: Callable[[StepRecord, bool], None]
    """Called with each request's record, and whether the step tripped its breaker."""

    def copy_to_host(self, copy_tensor: Callable[[Tensor], Tensor]) -> "StepOutput":
        """The same with its tensors on the host."""
        promotions = None if self.promotions is None else copy_tensor(self.promotions)
        lens = copy_tensor(self.accept_lens)
        return StepOutput(self.shape, self.dcs, self.states, lens, promotions, self.count)

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Book the step; `commits` are SGLang's CommittedTokens, None where nothing became visible."""
        promotions = self._promotions()
        for row, (state, length) in enumerate(zip(self.states, self.accept_lens.tolist(), strict=True)):
            commit = commits[row]
            start, committed = (commit.output_index, len(commit.token_ids)) if commit is not None else (0, 0)
            promoted = tuple(
                Promotion(start + depth - 1, token, target, math.exp(log_ratio))
                for depth, token, target, log_ratio in promotions[row]
                if depth <= committed
            )
            record = StepRecord(self.shape, self.dcs[row], min(length - 1, committed), committed, promoted)
            tripped = state.history.update(length - 1, len(promotions[row]), self.shape.num_steps)
            state.record(record)
            self.count(record, tripped)

    def _promotions(self) -> list[list[tuple[int, int, int, float]]]:
        """Per request (depth, token, target token, log ratio) of each promoted node, by depth."""
        if self.promotions is None:
            return [[] for _ in self.states]
        columns = self.promotions.tolist()
        rows = []
        for row in range(len(self.states)):
            nodes = zip(*(field[row] for field in columns), strict=True)
            found = [(int(d), int(t), int(target), ratio) for hit, d, t, target, ratio in nodes if hit]
            rows.append(sorted(found))
        return rows
