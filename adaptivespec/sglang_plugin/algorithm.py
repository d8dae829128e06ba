"""How SGLang sees the algorithm: an EAGLE-3 relative with its own worker and its own start-up checks."""

import logging
from typing import Any

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from adaptivespec.sglang_plugin import compat, settings

logger = logging.getLogger(__name__)

_SHAPE_FLAGS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
_MAX_RUNNING_REQUESTS = 48  # as SGLang's own default for speculative decoding


def register(problem: str | None) -> None:
    """Register ADAPTIVESPEC; with a `problem`, as an algorithm that refuses to start and says why."""

    def validate(server_args: Any) -> None:
        if problem is not None:
            raise compat.IncompatibleEngineError(problem)
        validate_server_args(server_args)

    @SpeculativeAlgorithm.register(  # type: ignore[untyped-decorator]
        settings.NAME, supports_overlap=True, validate_server_args=validate, spec_class=AdaptiveSpecAlgorithm
    )
    def _factory(server_args: Any) -> type:
        from adaptivespec.sglang_plugin.worker import AdaptiveSpecWorker

        return AdaptiveSpecWorker


def validate_server_args(server_args: Any) -> None:
    """Refuse what the plugin does not fit, before anything is loaded.

    Raises:
        ValueError: naming the flag, what was expected and the remedy.
        IncompatibleEngineError: if the engine is not the stock one.
    """
    compat.check_signatures()
    options = settings.server_options()
    given = [name for name in _SHAPE_FLAGS if getattr(server_args, name) is not None]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(
            f"{flags}: the tree policy sets the shapes under {settings.NAME}; leave the flag out. A fixed shape is "
            f'ADAPTIVESPEC_CONFIG=\'{{"tree": {{"policy": "static", "shape": [3, 1, 4]}}}}\''
        )
    if server_args.speculative_draft_model_path is None:
        raise ValueError(f"{settings.NAME} needs an EAGLE-3 drafter: give --speculative-draft-model-path")
    _check_backends(server_args, len(options.tree.shapes()) > 1)
    _refuse(server_args, "page_size", (None, 1), "a tree's branches share pages otherwise; leave --page-size out")
    _refuse(server_args, "tp_size", (1,), "ranks could choose different shapes; use --tp 1")
    _refuse(server_args, "pp_size", (1,), "use --pp-size 1")
    _refuse(server_args, "enable_dp_attention", (False,), "leave --enable-dp-attention out")
    _refuse(server_args, "enable_mixed_chunk", (False,), "leave --enable-mixed-chunk out")
    _refuse(server_args, "speculative_adaptive", (False,), "leave --speculative-adaptive out")
    _refuse(server_args, "speculative_use_rejection_sampling", (False,), "leave the flag out")
    _refuse(server_args, "disaggregation_mode", ("null",), "leave --disaggregation-mode out")
    logger.info("%s %s: %s", settings.NAME, settings.plugin_version(), options.to_dict())


def _check_backends(server_args: Any, swaps: bool) -> None:
    """Refuse or warn of kernels that do not fit trees or swaps; SGLang checks these for its own EAGLE3 alone."""
    attention = server_args.attention_backend
    if attention == "trtllm_mha":  # needs pages of 16 or more
        raise ValueError(
            f"--attention-backend={attention!r} does not go with {settings.NAME}: its pages are larger than 1; use triton"
        )
    if attention == "fa3":
        logger.warning(
            "attention backend fa3 is SGLang's default on Hopper, but for trees SGLang's EAGLE3 takes another; "
            "%s is checked with --attention-backend triton",
            settings.NAME,
        )
    graphs = server_args.cuda_graph_config
    if swaps and graphs is not None and graphs.prefill.backend == "full":
        raise ValueError(
            f"cuda_graph_config.prefill.backend='full' does not go with {settings.NAME}: its graphs hold the attention "
            "backend of one shape, and shapes change; leave it out, or use 'breakable'"
        )


def _refuse(server_args: Any, name: str, allowed: tuple[object, ...], remedy: str) -> None:
    value = getattr(server_args, name)
    if value not in allowed:
        flag = f"--{name.replace('_', '-')}"
        raise ValueError(f"{flag}={value!r} does not go with {settings.NAME} (expected {allowed[-1]!r}): {remedy}")


class AdaptiveSpecAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
    """Takes EAGLE-3's branches everywhere in the engine, and sizes its buffers for the widest shape."""

    def is_eagle(self) -> bool:
        """The draft is an EAGLE drafter."""
        return True

    def is_eagle3(self) -> bool:
        """The target's hidden states of three layers are captured for it."""
        return True

    def supports_grammar_overlap(self) -> bool:
        """As EAGLE-3."""
        return True

    # SGLang 0.5.23 calls these four on every algorithm, but its base class for plugins lacks them.
    def need_topk(self) -> bool:
        """As EAGLE-3."""
        return True

    def carries_draft_hidden_states(self) -> bool:
        """As EAGLE-3."""
        return True

    def get_platform_worker_cls(self) -> None:
        """No other worker on out-of-tree platforms."""

    def create_future_map(
        self, device: Any, req_to_token_pool: Any, needs_cpu_seq_lens: bool = True, needs_confidence_relay: bool = False
    ) -> Any:
        """As EAGLE-3."""
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Set the start-up shape and what the plugin needs; `server_args` records the assignments."""
        settings.freeze()
        start = settings.server_options().tree.shapes()[0]
        server_args.speculative_num_steps = start.num_steps
        server_args.speculative_eagle_topk = start.topk
        server_args.speculative_num_draft_tokens = start.num_draft_tokens
        server_args.page_size = 1
        if server_args.max_running_requests is None:
            server_args.max_running_requests = _MAX_RUNNING_REQUESTS
        if not server_args.disable_overlap_schedule:
            # The next shape depends on what the last step accepted, so there is nothing to overlap with.
            logger.warning("%s runs without overlap scheduling; --disable-overlap-schedule is set", settings.NAME)
            server_args.disable_overlap_schedule = True

    def resolve_max_speculative_num_draft_tokens(self, server_args: Any) -> int:
        """KV slots of the widest shape: what SGLang must reserve per request and step."""
        return max(shape.kv_slots for shape in settings.server_options().tree.shapes())
