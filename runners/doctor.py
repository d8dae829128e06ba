"""`make doctor`: what this machine has and lacks, one line each, with the remedy where something is missing.

python -m runners.doctor
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import netrc
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import requests
from huggingface_hub.constants import HF_HUB_CACHE

from runners.checkpoint import cache_dir
from runners.provenance import describe_gpus

HUB = "https://huggingface.co"
NEEDED_GIB = 5
# One of the paper's targets and its draft (docs/reproducing.md).
HUB_NEEDED_GIB = 17


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    required: bool = True
    """Whether the demo cannot run without it."""


def main() -> None:
    """Examine everything; end with 1 where the demo could not run."""
    findings = [check() for check in CHECKS]
    for finding in findings:
        sign = "ok  " if finding.ok else ("FAIL" if finding.required else "note")
        print(
            f"{sign}  {finding.name:<12} {finding.found}"
            + (f"\n      {'':<12} -> {finding.remedy}" if not finding.ok and finding.remedy else "")
        )
    sys.exit(any(finding.required and not finding.ok for finding in findings))


def python() -> Finding:
    """The interpreter."""
    return Finding(
        "python", sys.version_info >= (3, 11), platform.python_version(), "make setup PYTHON=/path/to/python3.11"
    )


def torch() -> Finding:
    """The build decides which device can serve."""
    try:
        import torch as library
    except (ImportError, OSError) as error:  # OSError: one of its libraries does not load
        return Finding("torch", False, f"does not import ({error})", "rm -rf .venv && make setup")
    return Finding("torch", True, f"{library.__version__} (CUDA {library.version.cuda or 'none'})")


def sglang() -> Finding:
    """The engine's version."""
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    return Finding("sglang", version == "0.5.23", version, "pip install sglang==0.5.23, or rm -rf .venv && make setup")


def plugin() -> Finding:
    """Whether SGLang would load the plugin, in a process of its own as the engine does it."""
    code = "import importlib.metadata as m; [e.load() for e in m.entry_points(group='sglang.srt.plugins', name='adaptivespec')][0]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1:] or ["loads"]
    return Finding(
        "plugin", done.returncode == 0, last[0], "pip install -e . (its entry point is not there or fails to import)"
    )


def gpu() -> Finding:
    """Cards and driver, and whether torch can use them."""
    cards = describe_gpus()
    if not cards["gpu"]:
        remedy = "the paper's 8B models need one with 24 GiB or more; the demo does not"
        return Finding("gpu", False, "none: everything runs on the CPU", remedy, required=False)
    found, build = f"{', '.join(cards['gpu'])} (driver {cards['driver']})", torch()
    if not build.ok or not cuda_answers():
        remedy = (
            "a driver that knows the CUDA version of this torch; if it has none: rm -rf .venv && make setup DEVICE=cuda"
        )
        return Finding("gpu", False, f"{found}, which torch {build.found} cannot use", remedy, required=False)
    return Finding("gpu", True, found)


def cuda_answers() -> bool:
    """Whether this torch and this driver go together."""
    import torch as library

    return library.cuda.is_available()


def hub() -> Finding:
    """The paper's models and data sets come from there."""
    try:
        requests.head(HUB, timeout=5)
    except requests.RequestException as error:
        remedy = (
            "the demo does not need it; else pass model.target.path=, model.draft.path= and data.gsm8k=, data.math500="
        )
        return Finding("hub", False, f"out of reach ({type(error).__name__})", remedy, required=False)
    return Finding("hub", True, "reachable")


def sandbox() -> Finding:
    """What confines model-written code."""
    from evaluators.sandbox import describe

    kind, remedy = describe()
    return Finding("sandbox", kind is not None, kind or "nothing confines programs here", remedy)


def wandb() -> Finding:
    """Whether online tracking would work."""
    if importlib.util.find_spec("wandb") is None:
        return Finding("wandb", False, "not installed", "pip install wandb; tracking is optional", required=False)
    logged_in = bool(os.environ.get("WANDB_API_KEY")) or has_netrc("api.wandb.ai")
    return Finding(
        "wandb",
        logged_in,
        "logged in" if logged_in else "not logged in",
        "wandb login; or tracking.mode=offline",
        required=False,
    )


def has_netrc(host: str) -> bool:
    """Whether ~/.netrc holds a login for the host."""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False


def disk() -> Finding:
    """Room for our cache: what the demo needs."""
    return room("disk", cache_dir(), NEEDED_GIB, "ADAPTIVESPEC_CACHE", required=True)


def hub_disk() -> Finding:
    """Room where the hub's library keeps the paper's models, often another disk."""
    return room("hub's disk", Path(HF_HUB_CACHE), HUB_NEEDED_GIB, "HF_HOME", required=False)


def room(name: str, place: Path, needed_gib: int, variable: str, required: bool) -> Finding:
    """Free space on the disk that `place` is on or will be made on; `variable` moves it."""
    while not place.exists():
        place = place.parent
    free_gib = shutil.disk_usage(place).free / 2**30
    remedy = f"{needed_gib} GiB are needed: free some, or set {variable} to a folder on a larger disk"
    return Finding(name, free_gib >= needed_gib, f"{free_gib:.0f} GiB free at {place}", remedy, required)


def cpu_build() -> Finding:
    """On a machine without CUDA: whether the engine finds kernels."""
    from adaptivespec import sglang_cpu

    found = "our stand-in of sgl_kernel will serve" if sglang_cpu.needed() else "a real sgl_kernel works here"
    return Finding("kernels", True, found)


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    torch,
    sglang,
    plugin,
    cpu_build,
    gpu,
    hub,
    sandbox,
    wandb,
    disk,
    hub_disk,
)

if __name__ == "__main__":
    main()
