"""Makes `.venv` with everything the project needs, and makes it again when the requirements change.

Standard library only: it runs before anything is installed.

    python3 runners/bootstrap.py --device auto      # what `make setup` calls; `cpu` and `cuda` override the detection
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SGLANG_CPU = ROOT / "adaptivespec" / "sglang_cpu"
INPUTS = (
    ROOT / "pyproject.toml",
    SGLANG_CPU / "requirements.txt",
    SGLANG_CPU / "requirements-nodeps.txt",
    SGLANG_CPU / "torchvision_shim.py",
    Path(__file__),
)
EXTRAS = ("harness", "dev")
STAMP = "adaptivespec-setup.json"


def main() -> None:
    """Bring the virtual environment up to date, or say that it is."""
    parser = argparse.ArgumentParser(description="Make the project's virtual environment.")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    arguments = parser.parse_args()
    check_machine()
    device = detect_device() if arguments.device == "auto" else arguments.device
    wanted = {"device": device, "python": platform.python_version(), "inputs": fingerprint(device)}
    stamp = arguments.venv / STAMP
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        return
    begin = time.monotonic()
    print(f"Setting up {arguments.venv} for {device} (a few minutes; undo with: rm -rf {arguments.venv})", flush=True)
    make(arguments.venv, device, keep=stamp.is_file() and same_base(stamp, wanted))
    stamp.write_text(json.dumps(wanted))
    print(f"Set-up done in {time.monotonic() - begin:.0f} s.", flush=True)


def check_machine() -> None:
    """Stop with the remedy where the project cannot run."""
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python is just who this line is for
        sys.exit(
            f"Python {platform.python_version()} is too old: 3.11 or newer is needed. Set PYTHON=/path/to/python3.11 for make."
        )
    if platform.system() != "Linux":
        sys.exit(
            f"{platform.system()} is not supported: SGLang runs on Linux. On Windows use WSL 2, elsewhere a Linux container."
        )


def detect_device() -> str:
    """Return `cuda` where an NVIDIA driver answers, else `cpu`."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "cuda" if answer.returncode == 0 and "GPU" in answer.stdout else "cpu"


def fingerprint(device: str) -> str:
    """Hash what decides the environment's content."""
    digest = hashlib.sha256(device.encode())
    for path in INPUTS:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def same_base(stamp: Path, wanted: dict[str, str]) -> bool:
    """Tell whether an existing environment may be updated in place rather than made anew."""
    found = json.loads(stamp.read_text())
    return bool(found["device"] == wanted["device"] and found["python"] == wanted["python"])


def make(venv: Path, device: str, *, keep: bool) -> None:
    """Create the environment (unless `keep`) and install into it."""
    import tomllib  # of Python 3.11: `check_machine` has the word before it is missed

    if not keep:
        shutil.rmtree(venv, ignore_errors=True)
        step("virtual environment", [sys.executable, "-m", "venv", str(venv)])
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    (venv / STAMP).unlink(missing_ok=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if device == "cuda":
        step("SGLang with its own CUDA packages (about 11 GB)", [*pip, "sglang==0.5.23"])
    else:
        step("SGLang's CPU subset (about 2.5 GB)", [*pip, *torch_index(), "-r", str(SGLANG_CPU / "requirements.txt")])
        step("SGLang itself", [*pip, "--no-deps", "-r", str(SGLANG_CPU / "requirements-nodeps.txt")])
        install_shim(venv)
    step("harness and tools", [*pip, *(requirement for extra in EXTRAS for requirement in extras[extra])])
    step("this project (editable)", [*pip, "--no-deps", "--editable", str(ROOT)])


def torch_index() -> list[str]:
    """Extra pip options from `TORCH_INDEX`: an index whose torch is a CPU build saves a 3 GB download."""
    index = os.environ.get("TORCH_INDEX")
    return ["--extra-index-url", index] if index else []


def install_shim(venv: Path) -> None:
    """Put the torchvision start-up hook into the environment's site-packages."""
    site = next((venv / "lib").glob("python3*/site-packages"))
    shutil.copy(SGLANG_CPU / "torchvision_shim.py", site / "adaptivespec_torchvision_shim.py")
    (site / "adaptivespec_torchvision_shim.pth").write_text("import adaptivespec_torchvision_shim\n")


def step(what: str, command: list[str]) -> None:
    """Run one step of the set-up, showing its name, and stop with its output where it fails."""
    print(f"  - {what}", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        hint = (
            "on Debian and Ubuntu: apt-get install python3-venv"
            if "-m venv" in " ".join(command)
            else ("is a package index reachable? `pip config list` shows which one is used; run make again to go on")
        )
        tail = "\n".join(done.stdout.splitlines()[-20:])
        sys.exit(f"{tail}\n\nSet-up failed at: {what}. Remedy: {hint}.")


if __name__ == "__main__":
    main()
