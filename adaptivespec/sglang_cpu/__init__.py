"""What stock SGLang lacks on a plain CPU; never on the path where a real sgl_kernel works.

SGLang imports `sgl_kernel` before any plugin runs, so its stand-in has to be a package on PYTHONPATH:

    env $(python -m adaptivespec.sglang_cpu) sglang serve --device cpu --attention-backend intel_amx ...

`needed()` says whether this machine wants it, `environment()` gives the variables to start a server with, and
`active()` is what the plugin asks inside the server.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

STAND_IN_PATH = Path(__file__).parent / "path"
"""The folder that goes on PYTHONPATH; it holds the package `sgl_kernel` and nothing else."""

_PROBE = "import torch, sgl_kernel; torch.ops.sgl_kernel.decode_attention_cpu"


def needed() -> bool:
    """True where neither CUDA nor a real CPU build of `sgl_kernel` works.

    A CUDA wheel of sgl_kernel is installed by SGLang everywhere but does not import without a driver, so what is
    found is tried in a process of its own, with the stand-in off the path.
    """
    if torch.cuda.is_available():
        return False
    entries = [entry for entry in sys.path if not _is_stand_in(entry)]
    if not any((Path(entry or ".") / "sgl_kernel").exists() for entry in entries):
        return True
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, entries)))
    return subprocess.run([sys.executable, "-c", _PROBE], env=env, capture_output=True, check=False).returncode != 0


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables a plain-CPU server must be started with, to be laid over `base` (default: this process's).

    Only the variables to set are returned. PYTHONPATH keeps what `base` has, after the stand-in. OMP_NUM_THREADS
    stays as `base` has it, else 1: two threads that contend for two cores are slower than one.
    """
    base = os.environ if base is None else base
    entries = [entry for entry in base.get("PYTHONPATH", "").split(os.pathsep) if entry and not _is_stand_in(entry)]
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": os.pathsep.join([str(STAND_IN_PATH), *entries]),
        "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS", "1"),
        # SGLang compiles two small functions of its drafting: that wants a C++ compiler, and seconds for each shape.
        "TORCH_COMPILE_DISABLE": "1",
        # SGLang copies each forward's inputs to where CUDA graphs, which there are none of here, would read them.
        "SGLANG_EAGER_INPUT_NO_COPY": "1",
    }


def active() -> bool:
    """True in a process whose `sgl_kernel` is the stand-in."""
    spec = importlib.util.find_spec("sgl_kernel")
    return (
        spec is not None and spec.origin is not None and STAND_IN_PATH.resolve() in Path(spec.origin).resolve().parents
    )


def _is_stand_in(entry: str) -> bool:
    return Path(entry).resolve() == STAND_IN_PATH.resolve()
