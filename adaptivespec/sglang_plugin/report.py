"""What the client gets to see: totals and trace in meta_info, the options in /server_info.

SGLang's per-step channel for extra data is sliced by token offsets when output is streamed, and later steps are lost
silently. So everything is kept with the request and handed over whole when it finishes.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from adaptivespec.sglang_plugin import settings

TOTALS_KEY = "adaptivespec"
TRACE_KEY = "adaptivespec_trace"


def around_streamer_class(original: Callable[..., type], scheduler: Any) -> type:
    """Hook: the scheduler's output streamer also carries our reports, under our algorithm."""
    base = original(scheduler)
    return _reporting(base, scheduler.draft_worker) if _serves(scheduler) else base


def around_server_info(original: Callable[..., None], controller: Any, state: dict[str, Any]) -> None:
    """Hook: /server_info shows options, shapes and version at internal_states[0].adaptivespec."""
    original(controller, state)
    if _serves(controller.scheduler):
        state[TOTALS_KEY] = controller.scheduler.draft_worker.describe()


def around_meta_info(
    original: Callable[..., None],
    manager: Any,
    meta_info: dict[str, Any],
    state: Any,
    customized_info: dict[str, Any],
    index: int,
    finish_reason: Any,
) -> None:
    """Hook: put a finished request's report into its meta_info, past SGLang's slicing."""
    others = {key: values for key, values in customized_info.items() if key != TOTALS_KEY}
    original(manager, meta_info, state, others, index, finish_reason)
    for report in customized_info.get(TOTALS_KEY, [[]] * (index + 1))[index]:
        meta_info.update(report)


def _serves(scheduler: Any) -> bool:
    return getattr(scheduler.spec_algorithm, "name", None) == settings.NAME


@lru_cache(maxsize=1)
def _reporting(base: type, worker: Any) -> type:
    """The streamer class with a report per finished request; made here because its base is SGLang's to choose."""

    class ReportingOutputStreamer(base):  # type: ignore[misc]
        has_additional_customized_info = True

        def build_additional_customized_info(self, reqs: list[Any]) -> dict[str, list[Any]]:
            """One list per emitted request: its report if it is finished, else nothing."""
            infos: dict[str, list[Any]] = super().build_additional_customized_info(reqs)
            infos[TOTALS_KEY] = [[_report(worker, req)] if req.finished() else [] for req in reqs]
            return infos

    return ReportingOutputStreamer


def _report(worker: Any, req: Any) -> dict[str, Any]:
    state = worker.finish(req)
    report: dict[str, Any] = {TOTALS_KEY: state.totals()}
    if state.options.trace:
        report[TRACE_KEY] = state.trace
    return report
