"""Where the plugin reaches into the engine, all in one table.

The functions import nothing of SGLang's at their top, because they load in each of its processes.
"""

from collections.abc import Callable
from typing import Any

from adaptivespec.sglang_plugin import accept_step, report, requests

_AROUND: dict[str, Callable[..., Any]] = {
    "sglang.srt.speculative.eagle_utils.eagle_sample": accept_step.around_eagle_sample,
    "sglang.srt.sampling.sampling_params.SamplingParams.verify": requests.around_verify,
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.update_request_meta_info": report.around_meta_info,
    "sglang.srt.managers.scheduler.Scheduler.get_output_streamer_class": report.around_streamer_class,
    "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController._add_speculative": (
        report.around_server_info
    ),
}


def register() -> None:
    """Register the hooks; SGLang applies them when all plugins have loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in _AROUND.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def check() -> None:
    """Raise IncompatibleEngineError unless every hook is in place in this process."""
    from adaptivespec.sglang_plugin.compat import check_hooks

    check_hooks(_AROUND)
