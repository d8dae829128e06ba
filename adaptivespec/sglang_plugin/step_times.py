"""What each decoding step costs, for any algorithm of EAGLE's kind and for none: one JSON line per step.

    ADAPTIVESPEC_STEP_TIMES=steps.jsonl sglang serve ...

    {"shape": [3, 4, 4], "batch": 1, "step_ms": 11.9, "draft_ms": 3.1, "verify_ms": 7.2, "extend_ms": 0.9, "graph": true}

`step_ms` is the host's time from one step's begin to the next one's, scheduling included; the phases are the device's own
(CUDA events, so that nothing waits for them). A diagnostic for servers without overlap scheduling: with it, steps interleave.
`graph` says whether the target's forward was a graph's replay. Without speculation `shape` is null and the forward is `verify_ms`.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from adaptivespec.options import STEP_TIMES_ENV

_WORKER = "sglang.srt.speculative.eagle_worker_v2"


class Recorder:
    """Times one process's steps; a step is written when the next one begins, when all its events have passed."""

    def __init__(self) -> None:
        self._stream: Any = None
        self._step: dict[str, Any] | None = None
        self._began_s = 0.0
        self._marks: list[tuple[str, Any]] = []
        self._on_cuda = torch.cuda.is_available()

    def around_step(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Hook: a step of a speculative worker."""
        if not self._begin(batch):
            return original(worker, batch, *args, **kwargs)
        result = original(worker, batch, *args, **kwargs)
        if self._step is not None:
            self._step["shape"] = [worker.speculative_num_steps, worker.topk, worker.speculative_num_draft_tokens]
        return result

    def around_forward(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Hook: the target's forward, which is the whole step where nothing speculates."""
        vanilla = worker.model_runner.spec_algorithm.is_none()
        if vanilla and self._begin(batch):
            self.mark("begin")
        result = original(worker, batch, *args, **kwargs)
        if self._step is not None:
            self._step["graph"] = bool(result.can_run_cuda_graph)
            if vanilla:
                self.mark("verify_ms")
        return result

    def phase(self, name: str) -> Callable[..., Any]:
        """Return the hook of one phase of a step."""

        def around_phase(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._step is not None and not self._marks:
                self.mark("begin")
            result = original(*args, **kwargs)
            if self._step is not None:
                self.mark(name)
            return result

        return around_phase

    def mark(self, name: str) -> None:
        """The phase `name` ends here."""
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append((name, event))
        else:
            self._marks.append((name, time.perf_counter()))

    def _begin(self, batch: Any) -> bool:
        """Write the step before, and open a new one; False for a prefill, after which nothing is open."""
        now_s = time.perf_counter()
        mode = batch.forward_mode
        decodes = not (mode.is_extend() or batch.is_extend_in_batch or mode.is_idle())
        if self._step is not None and decodes:
            self._write({**self._step, "step_ms": 1e3 * (now_s - self._began_s), **self._phases()})
        # Idle time may lie before a prefill, so a step before one has no end.
        self._step = {"shape": None, "batch": batch.batch_size()} if decodes else None
        self._began_s, self._marks = now_s, []
        return decodes

    def _phases(self) -> dict[str, float]:
        found = {}
        for (_, begin), (name, end) in zip(self._marks, self._marks[1:], strict=False):
            if isinstance(end, float):
                found[name] = 1e3 * (end - begin)
            else:
                end.synchronize()
                found[name] = begin.elapsed_time(end)
        return found

    def _write(self, line: dict[str, Any]) -> None:
        if self._stream is None:
            # Kept for the process' life.
            self._stream = open(os.environ[STEP_TIMES_ENV], "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._stream.write(json.dumps(line) + "\n")


def register() -> None:
    """Register the hooks, on SGLang's own classes, so that every algorithm's steps are timed alike."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    try:
        open(os.environ[STEP_TIMES_ENV], "a", encoding="utf-8").close()
    except OSError as error:
        # SGLang only logs what other exceptions a plugin raises, and the first step would end the scheduler.
        raise SystemExit(
            f"{STEP_TIMES_ENV}={os.environ[STEP_TIMES_ENV]}: expected a file that can be written ({error.strerror})"
        ) from error
    recorder = Recorder()
    hooks = {
        f"{_WORKER}.EAGLEWorkerV2.forward_batch_generation": recorder.around_step,
        f"{_WORKER}.EagleDraftWorker.draft": recorder.phase("draft_ms"),
        f"{_WORKER}.EAGLEWorkerV2.verify": recorder.phase("verify_ms"),
        f"{_WORKER}.EagleDraftWorker._draft_extend_for_decode": recorder.phase("extend_ms"),
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation": recorder.around_forward,
    }
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
