"""The guard: this plugin fits one engine version, and refuses to serve on any other than half fit.

What is overridden or hooked is listed with the parameters it must have; the worker asserts that the hooks are in.
"""

import inspect
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

from packaging.specifiers import SpecifierSet

SGLANG = SpecifierSet(">=0.5.23,<0.5.24")

_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_SIGNATURES = {
    # Hooked.
    "sglang.srt.speculative.eagle_utils:eagle_sample": (
        "verify_input batch logits_output grammar_mask uno_target_max_top_k watermark_state watermark_full_mask"
    ),
    "sglang.srt.sampling.sampling_params:SamplingParams.verify": "self vocab_size",
    "sglang.srt.managers.tokenizer_manager:TokenizerManager.update_request_meta_info": (
        "self meta_info state customized_info index finish_reason"
    ),
    "sglang.srt.managers.scheduler:Scheduler.get_output_streamer_class": "self",
    "sglang.srt.managers.scheduler_components.internal_state:SchedulerInternalStateController._add_speculative": (
        "self state"
    ),
    # Overridden.
    f"{_WORKER}:EAGLEWorkerV2.__init__": "self server_args gpu_id nccl_port target_worker",
    f"{_WORKER}:EAGLEWorkerV2.init_cuda_graphs": "self",
    f"{_WORKER}:EAGLEWorkerV2.forward_batch_generation": "self batch on_publish grammar_barrier pp_proxy_tensors",
    f"{_WORKER}:EagleDraftWorker.draft": "self batch with_topology",
    f"{_WORKER}:EagleDraftWorker._capture_cuda_graphs": "self",
    f"{_WORKER}:EagleDraftWorker._draft_extend_for_prefill": (
        "self batch target_hidden_states next_token_ids mm_input_embeds kv_loc_plan"
    ),
    f"{_WORKER}:EagleDraftWorker._draft_extend_for_decode": "self batch batch_result kv_loc_plan",
    "sglang.srt.managers.scheduler_components.output_streamer:"
    "SchedulerOutputStreamer.build_additional_customized_info": "self reqs",
    "sglang.srt.managers.scheduler_components.output_streamer:"
    "SchedulerOutputStreamer.should_build_additional_customized_info": "self",
    "sglang.srt.speculative.spec_registry:CustomSpecAlgo.handle_server_args": "self server_args",
    "sglang.srt.speculative.spec_registry:CustomSpecAlgo.resolve_max_speculative_num_draft_tokens": "self server_args",
    # Called with state of the engine's in our hands.
    f"{_WORKER}:EAGLEWorkerV2._override_worker_state": (
        "self speculative_num_steps speculative_num_draft_tokens cuda_graph_bs"
    ),
    f"{_WORKER}:EagleDraftWorker._rebuild_topk1_chain_buffers": "self",
    f"{_WORKER}:EagleDraftWorker.init_attention_backend": "self",
    "sglang.srt.runtime_context:_ConfigBag._set": "self name value",
    "sglang.srt.managers.auxiliary_output:append_auxiliary_output": "current output",
}


class IncompatibleEngineError(RuntimeError):
    """The running SGLang is not the one this plugin was written for."""


def version_problem() -> str | None:
    """Why the installed SGLang's version does not do, or None."""
    installed = version("sglang")
    if SGLANG.contains(installed, prereleases=True):
        return None
    return (
        f"SGLang {installed} is installed; this plugin is written for sglang{SGLANG}. "
        f"Install it (pip install 'sglang{SGLANG}') or serve without --speculative-algorithm ADAPTIVESPEC"
    )


def check_signatures() -> None:
    """Compare everything that is hooked, overridden or handed to the engine with what it should look like.

    Raises:
        IncompatibleEngineError: naming each difference.
    """
    problems = [problem for path, expected in _SIGNATURES.items() if (problem := _difference(path, expected))]
    if problems:
        raise IncompatibleEngineError(
            f"the installed SGLang {version('sglang')} is not stock: {'; '.join(problems)}. "
            "Reinstall it, or serve without --speculative-algorithm ADAPTIVESPEC"
        )


def check_hooks(hooks: dict[str, Any]) -> None:
    """Make sure that each target of `hooks` (dotted path -> our function) runs through our function.

    Raises:
        IncompatibleEngineError: naming the targets that do not.
    """
    missing = [target for target, hook in hooks.items() if not _runs_through(_resolve_dotted(target), hook)]
    if missing:
        raise IncompatibleEngineError(
            f"hooks of the AdaptiveSpec plugin are not in place: {', '.join(missing)}. Another plugin may have "
            "replaced the functions, or SGLang failed to apply the hooks (see its log above); refusing to serve "
            "without the accept rule"
        )


def _difference(path: str, expected: str) -> str | None:
    try:
        parameters = list(inspect.signature(resolve_name(path)).parameters)
    except (ImportError, AttributeError, ValueError) as error:
        return f"{path} is missing ({error})"
    if parameters != expected.split():
        return f"{path} has parameters ({' '.join(parameters)}), expected ({expected})"
    return None


def _resolve_dotted(target: str) -> Any:
    return resolve_name(target)


def _runs_through(function: Any, hook: Any) -> bool:
    """SGLang wraps a target in closures over the hook; walk down the wrappers."""
    while function is not None:
        if any(cell.cell_contents is hook for cell in getattr(function, "__closure__", None) or ()):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
