"""On a plain CPU: keep SGLang on its tree-capable attention backend."""

import torch


def pretend_amx() -> None:
    """Make SGLang keep `intel_amx`, which the stand-in of sgl_kernel serves on any CPU.

    SGLang would silently fall back to `torch_native`, which cannot verify a tree.

    Raises:
        RuntimeError: beside CUDA, where the stand-in must not be on the path.
    """
    if torch.cuda.is_available():
        raise RuntimeError("the CPU stand-in of sgl_kernel is on PYTHONPATH of a CUDA machine; take it off the path")
    from sglang.srt.runtime_context import override_platform

    override_platform(has_amx=True).__enter__()
