"""ADAPTIVESPEC as an out-of-tree speculative algorithm of stock SGLang 0.5.23 (docs/serving.md).

    sglang serve --model-path TARGET --speculative-draft-model-path DRAFT --speculative-algorithm ADAPTIVESPEC

Life of a step: `worker` asks the tree policy for a shape and swaps the engine to it, SGLang drafts and verifies,
`accept_step` lets the accept rule promote, `step` books what was committed, `report` tells the client.
"""

import os

from adaptivespec import sglang_cpu
from adaptivespec.options import STEP_TIMES_ENV


def register() -> None:
    """Entry point of group `sglang.srt.plugins`; SGLang calls it once in each of its processes.

    On an engine that it does not fit, it hooks nothing and registers an algorithm that refuses to start, with the
    reason: SGLang only logs what a plugin raises.
    """
    if sglang_cpu.active():
        from adaptivespec.sglang_plugin import cpu

        cpu.register()
    from adaptivespec.sglang_plugin import algorithm, compat, hooks

    problem = compat.version_problem()
    if problem is None:
        hooks.register()
        if os.environ.get(STEP_TIMES_ENV):
            from adaptivespec.sglang_plugin import step_times

            step_times.register()
    algorithm.register(problem)
