"""Tree policies: which shape the next draft tree takes (paper section 3.1, Eq. 2, Tables 6 and 7).

A policy turns what is known of each request before a step into a signal, and the batch's mean signal into a shape,
because an engine drafts one shape per batch. Host scalars only; no tensor, no engine.

    python -c "from adaptivespec.tree import DcsTree; print(*DcsTree().shapes(), sep='  ')"
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from adaptivespec.checks import check_bool, check_choice, check_count, check_number
from adaptivespec.shape import TreeShape


@dataclass(frozen=True)
class HistoryOptions:
    """How a request's accept history is kept (Eq. 2's RAR and the circuit breaker)."""

    alpha: float = 0.3
    """Weight of the newest step in RAR."""
    rar_init: float = 0.5
    """RAR before the first step."""
    breaker: int | None = 5
    """Steps in a row without an accepted draft that trip the breaker; None never."""
    rar_counts_promoted: bool = True
    """Whether a promoted draft counts as accepted in RAR."""

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0.0, at_most=1.0)
        check_number("rar_init", self.rar_init, at_least=0.0, at_most=1.0)
        if self.breaker is not None:
            check_count("breaker", self.breaker)
        check_bool("rar_counts_promoted", self.rar_counts_promoted)


class AcceptHistory:
    """What one request has accepted so far: RAR, the recent accept rate, and the circuit breaker.

    Paper: after five steps without an accepted draft, back to the starting shape. We: the request counts as DCS 0
    while the breaker is tripped; RAR keeps updating, and the first step that accepts a draft releases it.
    """

    def __init__(self, options: HistoryOptions) -> None:
        self._options = options
        self._barren_steps = 0
        self.rar = options.rar_init
        self.breaker_trips = 0

    @property
    def tripped(self) -> bool:
        """Whether the breaker holds the request at the starting shape."""
        return self._options.breaker is not None and self._barren_steps >= self._options.breaker

    def update(self, accepted: int, promoted: int, num_steps: int) -> bool:
        """Take in one verify step: drafts accepted, those among them promoted, and the drafted depth.

        Returns whether this step tripped the breaker.
        """
        counted = accepted if self._options.rar_counts_promoted else accepted - promoted
        alpha = self._options.alpha
        self.rar = (1 - alpha) * self.rar + alpha * counted / num_steps
        was_tripped = self.tripped
        self._barren_steps = 0 if accepted else self._barren_steps + 1
        trips = self.tripped and not was_tripped
        self.breaker_trips += trips
        return trips


class TreePolicy(Protocol):
    """Chooses the shape of each step's tree."""

    name: ClassVar[str]
    needs_probs: ClassVar[bool]
    """Whether `signal` reads the draft's probabilities (costs a device sync per step on CUDA)."""

    @property
    def history(self) -> HistoryOptions:
        """How accept histories are kept under this policy."""
        ...

    def shapes(self) -> tuple[TreeShape, ...]:
        """Every shape that `select` may return, each once; the first is the start-up shape."""
        ...

    def signal(self, probs: Sequence[float], history: AcceptHistory, d: float | None) -> float:
        """One request's wish, from the draft's top probabilities for the first drafted token, most probable first.

        `d` is the request's own threshold, None if it has none; `probs` is empty unless `needs_probs`.
        """
        ...

    def select(self, mean_signal: float) -> TreeShape:
        """The batch's shape, from the mean of its requests' signals."""
        ...


@dataclass(frozen=True)
class StaticTree:
    """Always the same shape."""

    name: ClassVar[str] = "static"
    needs_probs: ClassVar[bool] = False

    shape: TreeShape = field(default_factory=lambda: TreeShape(3, 1, 4))

    @property
    def history(self) -> HistoryOptions:
        """RAR is kept for the record; no breaker."""
        return HistoryOptions(breaker=None)

    def shapes(self) -> tuple[TreeShape, ...]:
        """The one shape."""
        return (self.shape,)

    def signal(self, probs: Sequence[float], history: AcceptHistory, d: float | None) -> float:
        """Nothing to wish."""
        return 0.0

    def select(self, mean_signal: float) -> TreeShape:
        """The one shape."""
        return self.shape


_DCS_STEPS, _DCS_TOPK = (3, 7), (4, 1)  # at DCS 0 and 1


@dataclass(frozen=True)
class DcsTree:
    """Draft confidence score: DCS = clip(p_draft(top1) * RAR / d, 0, 1), Eq. 2; (3,4,4) at 0 to (7,1,8) at 1.

    Paper: section 4.1 ends the range at (7,4,8), Table 7 at (7,1,8). We: (7,1,8). num_draft_tokens is num_steps + 1
    throughout, so the reachable shapes do not depend on d.
    """

    name: ClassVar[str] = "dcs"
    needs_probs: ClassVar[bool] = True

    d: float = 0.5
    """Threshold: the confidence times RAR at which the deepest tree is drafted."""
    alpha: float = 0.3
    rar_init: float = 0.5
    breaker: int | None = 5
    rar_counts_promoted: bool = True
    rounding: str = "half_up"

    def __post_init__(self) -> None:
        check_number("d", self.d, above=0.0)
        check_choice("rounding", self.rounding, ("half_up", "half_even"))
        _ = self.history  # validates the rest

    @property
    def history(self) -> HistoryOptions:
        """RAR and the circuit breaker as configured."""
        return HistoryOptions(self.alpha, self.rar_init, self.breaker, self.rar_counts_promoted)

    def shapes(self) -> tuple[TreeShape, ...]:
        """The eight reachable shapes, from (3,4,4) on."""
        # num_steps turns at odd eighths and topk at odd sixths, so a grid of 48ths meets every interval.
        return tuple(dict.fromkeys(self.select(i / 48) for i in range(49)))

    def signal(self, probs: Sequence[float], history: AcceptHistory, d: float | None) -> float:
        """DCS; 0 while the breaker is tripped."""
        if history.tripped:
            return 0.0
        return min(1.0, max(0.0, probs[0] * history.rar / (self.d if d is None else d)))

    def select(self, mean_signal: float) -> TreeShape:
        """num_steps = round(3 + 4 DCS), topk = round(1 + 3 (1 - DCS))."""
        steps = _round(_DCS_STEPS[0] + (_DCS_STEPS[1] - _DCS_STEPS[0]) * mean_signal, self.rounding)
        topk = _round(_DCS_TOPK[1] + (_DCS_TOPK[0] - _DCS_TOPK[1]) * (1 - mean_signal), self.rounding)
        return TreeShape(steps, topk, steps + 1)


_TALON_TABLE = (TreeShape(7, 1, 8), TreeShape(6, 2, 8), TreeShape(4, 3, 8), TreeShape(3, 4, 8))


@dataclass(frozen=True)
class TalonTree:
    """TALON*: shape by the number of candidates with p >= mu * p(top1), at num_draft_tokens 8.

    Paper: gives the two ends. We: the table between, `table`[k - 1] for k candidates kept, more count as the last.
    """

    name: ClassVar[str] = "talon"
    needs_probs: ClassVar[bool] = True

    mu: float = 0.03
    table: tuple[TreeShape, ...] = _TALON_TABLE

    def __post_init__(self) -> None:
        check_number("mu", self.mu, above=0.0, at_most=1.0)
        if not self.table:
            raise ValueError("table=[]: expected a shape for each number of candidates kept")
        widest = max(shape.topk for shape in self.table)
        if widest < len(self.table):
            raise ValueError(
                f"table of {len(self.table)} shapes with topk up to {widest}: expected topk {len(self.table)} "
                "somewhere, since only so many candidates of the first draft distribution are kept"
            )

    @property
    def history(self) -> HistoryOptions:
        """RAR is kept for the record; no breaker."""
        return HistoryOptions(breaker=None)

    def shapes(self) -> tuple[TreeShape, ...]:
        """The table's shapes, widest first as for DCS."""
        return tuple(dict.fromkeys(reversed(self.table)))

    def signal(self, probs: Sequence[float], history: AcceptHistory, d: float | None) -> float:
        """Candidates kept, 1 to the table's length."""
        return float(sum(p >= self.mu * probs[0] for p in probs[: len(self.table)]))

    def select(self, mean_signal: float) -> TreeShape:
        """The table's entry for the rounded mean."""
        return self.table[_round(mean_signal, "half_up") - 1]


@dataclass
class CycleTree:
    """Every shape in turn, a new one each step. A diagnostic that makes shape swaps the rule; not a method."""

    name: ClassVar[str] = "cycle"
    needs_probs: ClassVar[bool] = False

    table: tuple[TreeShape, ...] = field(default_factory=lambda: (*DcsTree().shapes(), *_TALON_TABLE))
    _step: int = field(default=-1, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.table:
            raise ValueError("table=[]: expected at least one shape to cycle through")

    @property
    def history(self) -> HistoryOptions:
        """RAR is kept for the record; no breaker."""
        return HistoryOptions(breaker=None)

    def shapes(self) -> tuple[TreeShape, ...]:
        """The shapes to cycle through."""
        return tuple(dict.fromkeys(self.table))

    def signal(self, probs: Sequence[float], history: AcceptHistory, d: float | None) -> float:
        """Nothing to wish."""
        return 0.0

    def select(self, mean_signal: float) -> TreeShape:
        """The next shape."""
        self._step += 1
        shapes = self.shapes()
        return shapes[self._step % len(shapes)]


def _round(value: float, rounding: str) -> int:
    return math.floor(value + 0.5) if rounding == "half_up" else round(value)
