"""What is kept per request: its options, its accept history, its totals and its trace."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from adaptivespec.accept import Margin, Strict
from adaptivespec.options import REQUEST_KEY, RequestOptions
from adaptivespec.sglang_plugin import settings
from adaptivespec.shape import TreeShape
from adaptivespec.tree import AcceptHistory, DcsTree

_SAMPLED_NOTE = "temperature above 0: strict instead of the server's {rule}, which is defined for greedy decoding"


@dataclass(frozen=True)
class Promotion:
    """One promoted token of a step."""

    position: int
    """Its index in the request's output tokens."""
    token: int
    target_token: int
    margin: float
    """p(token) / p(target_token) under the target."""


@dataclass(frozen=True)
class StepRecord:
    """What one verify step did for one request; only what was committed counts."""

    shape: TreeShape
    dcs: float | None
    accepted: int
    committed: int
    promoted: tuple[Promotion, ...]

    def to_dict(self) -> dict[str, Any]:
        """As the trace of docs/data.md."""
        return {
            "shape": self.shape.as_list(),
            "dcs": self.dcs,
            "accepted": self.accepted,
            "committed": self.committed,
            "promoted": [vars(promotion) for promotion in self.promoted],
        }


@dataclass(eq=False)
class RequestState:
    """One request's state; lives exactly as long as SGLang's own object of the request."""

    options: RequestOptions
    history: AcceptHistory
    note: str | None
    """Why the request did not get the rule that the server's default names."""
    steps_per_shape: dict[str, int] = field(default_factory=dict)
    committed: int = 0
    accepted: int = 0
    promotions: int = 0
    trace: list[dict[str, Any]] = field(default_factory=list)

    def record(self, step: StepRecord) -> None:
        """Add a step to the totals and, if asked for, to the trace."""
        key = str(step.shape)
        self.steps_per_shape[key] = self.steps_per_shape.get(key, 0) + 1
        self.committed += step.committed
        self.accepted += step.accepted
        self.promotions += len(step.promoted)
        if self.options.trace:
            self.trace.append(step.to_dict())

    def totals(self) -> dict[str, Any]:
        """As `adaptivespec` of docs/data.md."""
        tree, rule = settings.server_options().tree, self.options.rule
        return {
            "steps_per_shape": dict(self.steps_per_shape),
            "steps": sum(self.steps_per_shape.values()),
            "committed": self.committed,
            "accepted": self.accepted,
            "promotions": self.promotions,
            "breaker_trips": self.history.breaker_trips,
            "rule": rule.name,
            "kappa": rule.kappa if isinstance(rule, Margin) else None,
            "d": (self.options.d or tree.d) if isinstance(tree, DcsTree) else None,
            "note": self.note,
            "traced": self.options.trace,
        }


def new_state(sampling_params: Any) -> RequestState:
    """State of a request that has not taken a step yet."""
    options, note = effective_options(sampling_params)
    return RequestState(options, AcceptHistory(settings.server_options().tree.history), note)


def effective_options(sampling_params: Any) -> tuple[RequestOptions, str | None]:
    """A request's options, and a note if it did not get the server's rule.

    A lossy rule is defined for greedy decoding. Under temperature above 0 a server-wide one falls back to strict, and
    one that the request names itself is refused.

    Raises:
        ValueError: naming the key or value that does not fit.
    """
    options = settings.server_options().for_request(_own_params(sampling_params.custom_params))
    if options.rule.promotion_limit == 0 or sampling_params.top_k <= 1:  # SGLang turns temperature 0 into top-k 1
        return options, None
    if options.names_rule:
        raise ValueError(
            f"{REQUEST_KEY}.rule={options.rule.name!r} with temperature above 0: a lossy rule is defined for greedy "
            "decoding; set temperature 0 or rule 'strict'"
        )
    note = _SAMPLED_NOTE.format(rule=options.rule.name)
    return RequestOptions(Strict(), options.d, options.trace), note


def around_verify(original: Callable[..., None], sampling_params: Any, vocab_size: int) -> None:
    """Hook: refuse bad options in our dict for that request alone, where SGLang checks its own parameters."""
    original(sampling_params, vocab_size)
    from sglang.srt.runtime_context import get_spec

    algorithm = get_spec().speculative_algorithm
    if algorithm == settings.NAME:
        effective_options(sampling_params)
    elif _own_params(sampling_params.custom_params) is not None:
        raise ValueError(
            f"custom_params[{REQUEST_KEY!r}] is given, but this server runs --speculative-algorithm {algorithm}; "
            f"start it with {settings.NAME} or leave the options out"
        )


def _own_params(custom_params: object) -> object:
    return custom_params.get(REQUEST_KEY) if isinstance(custom_params, Mapping) else None
