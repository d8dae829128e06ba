#!/usr/bin/env python3
"""Installs a pack on a machine without a network, beside the torch that is there; standard library only.

    python3 install.py --prefix ~/adaptivespec              # report, verify, unpack, try all imports
    python3 install.py --report                             # only say what this machine has
    . ~/adaptivespec/env.sh && python3 -m runners.gpu_check

Nothing of the machine's Python is changed: the pack is a folder that `env.sh` puts first on PYTHONPATH; undo with rm -rf.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCHEMA = 1
NEEDS_GPU = ("sgl_kernel",)
"""Modules that load the NVIDIA driver's library."""
SHOWN = ("torch", "triton", "torchvision", "numpy", "transformers", "sglang", "sglang-kernel", "flashinfer-python")

PROBE = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
found = {"packages": {name: version(name) for name in sys.argv[1:]}, "cuda": None, "gpu": None, "capability": None, "error": None}
try:
    import torch
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(0), "capability": list(torch.cuda.get_device_capability(0))}
except Exception as error:
    found |= {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(found))
"""
IMPORTS = """
import contextlib, importlib, io, json, sys
failed = {}
for name in json.load(sys.stdin):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}".strip()[:500]
print(json.dumps(failed))
"""


class RefusedError(Exception):
    """Nothing was installed; the message says why and what to do."""


def main() -> None:
    """Install, or say in one line why not."""
    parser = argparse.ArgumentParser(description="Install the pack beside this file.")
    parser.add_argument("--prefix", type=Path, help="folder to install into; made anew if an older pack is in it")
    parser.add_argument("--report", action="store_true", help="only say what this machine has")
    parser.add_argument("--any-torch", action="store_true", help="go on with another torch than the pack was made for")
    parser.add_argument("--no-import-check", action="store_true", help="do not try to import everything afterwards")
    arguments = parser.parse_args()
    if not arguments.report and arguments.prefix is None:
        parser.error("--prefix DIR says where to install; --report only looks")
    try:
        manifest = read_manifest(HERE)
        machine = examine()
        print_report(manifest, machine)
        refusals, notes = judge(manifest, machine, any_torch=arguments.any_torch)
        print("".join(f"note: {note}\n" for note in notes), end="")
        if refusals:
            raise RefusedError("\n".join(refusals))
        if arguments.report:
            return
        prefix = arguments.prefix.expanduser().resolve()
        verify(HERE, manifest)
        unpack(HERE, manifest, prefix)
        write_environment(prefix, manifest, machine["cuda_home"])
        print(f"unpacked {manifest['files']} files, {manifest['unpacked_bytes'] / 2**20:.0f} MiB, into {prefix}")
        if not arguments.no_import_check:
            check_imports(prefix, manifest, gpu=machine["gpu"] is not None)
        print_commands(prefix, manifest)
    except RefusedError as refusal:
        sys.exit(f"refused: {refusal}")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The pack's description. Raises RefusedError where there is none, or one of another schema."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise RefusedError(f"{path} is missing: carry manifest.json and all parts into the folder of install.py")
    manifest: dict[str, Any] = json.loads(path.read_text())
    if manifest["schema"] != SCHEMA:
        raise RefusedError(
            f"manifest.json has schema {manifest['schema']}, this install.py reads {SCHEMA}: take the one made with the parts"
        )
    return manifest


def verify(folder: Path, manifest: dict[str, Any]) -> None:
    """Compare every part's size and hash with the manifest. Raises RefusedError naming each part that differs."""
    wrong = []
    for part in manifest["parts"]:
        path = folder / part["name"]
        if not path.is_file():
            wrong.append(f"{part['name']} is missing")
        elif path.stat().st_size != part["bytes"]:
            wrong.append(f"{part['name']} has {path.stat().st_size} bytes, expected {part['bytes']}")
        elif file_digest(path) != part["sha256"]:
            wrong.append(f"{part['name']} has another sha256 than the manifest")
    if wrong:
        raise RefusedError("; ".join(wrong) + ". Carry these parts again")


def file_digest(path: Path) -> str:
    """Hash of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class JoinedParts(io.RawIOBase):
    """Reads the parts one after the other, as the one file that they were cut from."""

    def __init__(self, paths: list[Path]) -> None:
        self._streams = [path.open("rb") for path in paths]
        self._left = list(self._streams)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the first part that has something left."""
        while self._left:
            count = self._left[0].readinto(buffer)
            if count:
                return count
            self._left.pop(0)
        return 0

    def close(self) -> None:
        """Close all parts."""
        for stream in self._streams:
            stream.close()
        super().close()


def unpack(folder: Path, manifest: dict[str, Any], prefix: Path) -> None:
    """Unpack into `prefix` by way of a folder beside it, so that a half-made pack never looks like one.

    Raises:
        RefusedError: where `prefix` holds something else than an installed pack, or there is no room.
    """
    if folder.is_relative_to(prefix):
        raise RefusedError(
            f"--prefix {prefix} holds the pack's own parts, which would be deleted: name another --prefix"
        )
    if prefix.exists() and any(prefix.iterdir()) and not is_installed(prefix):
        raise RefusedError(f"{prefix} is not empty and holds no installed pack: name another --prefix, or empty it")
    prefix.parent.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(prefix.parent).free, manifest["unpacked_bytes"] + (64 << 20)
    if free < needed:
        raise RefusedError(
            f"{prefix.parent} has {free / 2**20:.0f} MiB free, {needed / 2**20:.0f} are needed: name another --prefix"
        )
    partial = prefix.with_name(f"{prefix.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with (
        JoinedParts([folder / part["name"] for part in manifest["parts"]]) as parts,
        tarfile.open(fileobj=parts, mode="r|xz") as tar,
    ):
        tar.extractall(partial, filter="data")
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=1))
    shutil.rmtree(prefix, ignore_errors=True)
    partial.rename(prefix)


def is_installed(prefix: Path) -> bool:
    """Whether `unpack` made this folder, so that it may be deleted: many other things have a manifest.json."""
    try:
        manifest = json.loads((prefix / "manifest.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"schema", "distributions"} <= set(manifest) and (prefix / "site").is_dir()


def examine() -> dict[str, Any]:
    """What this machine has. torch is asked in a process of its own: a broken one may take its process down."""
    asked = subprocess.run([sys.executable, "-c", PROBE, *SHOWN], capture_output=True, text=True, check=False)
    lines = asked.stdout.splitlines()
    found: dict[str, Any] = {
        "packages": {},
        "cuda": None,
        "gpu": None,
        "capability": None,
        "error": asked.stderr.strip()[-300:],
    }
    if asked.returncode == 0 and lines:
        found = json.loads(lines[-1])
    home = find_cuda_home()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "glibc": platform.libc_ver()[1],
        **{"torch": None, **found},
        "cuda_home": home,
        "nvcc": nvcc_release(home),
        "compiler": shutil.which(os.environ.get("CXX", "c++")),
    }


def find_cuda_home() -> str | None:
    """The CUDA toolkit's folder: with nvcc and headers. A `nvcc` on PATH may be a mere wrapper, so its own place is one guess of three."""
    nvcc = shutil.which("nvcc")
    guesses = [os.environ.get("CUDA_HOME"), nvcc and str(Path(nvcc).resolve().parent.parent), "/usr/local/cuda"]
    whole = (
        guess
        for guess in guesses
        if guess and Path(guess, "bin", "nvcc").exists() and Path(guess, "include", "cuda_runtime.h").exists()
    )
    return next(whole, None)


def nvcc_release(home: str | None) -> str | None:
    """`13.0`, or None without a compiler."""
    if home is None:
        return None
    told = subprocess.run([Path(home, "bin", "nvcc"), "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"release (\d+\.\d+)", told)
    return match[1] if match else None


def judge(manifest: dict[str, Any], machine: dict[str, Any], *, any_torch: bool) -> tuple[list[str], list[str]]:
    """(why not to install, what to know): each names the value, what was expected and the remedy."""
    target = manifest["target"]
    refusals, notes = [], []
    if machine["python"].split(".")[:2] != target["python"].split("."):
        refusals.append(
            f"Python {machine['python']} runs this, the pack's compiled files are for {target['python']}: "
            f"run install.py with the python{target['python']} that has torch, or make a pack for this Python"
        )
    if machine["system"] != target["system"]:
        refusals.append(f"this is {machine['system']}, the pack is for {target['system']}: use such a machine")
    if numbers(machine["glibc"]) < numbers(target["glibc"]):
        refusals.append(
            f"glibc is {machine['glibc'] or 'not the C library here'}, {target['glibc']} or newer is needed: use a newer system image"
        )
    problem = torch_problem(target, machine)
    if problem and any_torch:
        notes.append(f"{problem}; going on because of --any-torch")
    elif problem:
        refusals.append(
            f"{problem}: run install.py with the Python that has it, or pass --any-torch to go on without a promise"
        )
    if machine["gpu"] is None:
        notes.append("torch sees no GPU: imports can be checked here, the plugin's CUDA path cannot")
    elif machine["capability"] != target["capability"]:
        notes.append(
            f"{machine['gpu']} has compute capability {machine['capability']}, the pack's kernels are for {target['capability']}: they will not load"
        )
    if (machine["nvcc"] or "").split(".")[0] != target["cuda"]:
        notes.append(
            f"nvcc is {machine['nvcc'] or 'not here'}; SGLang compiles some kernels at first use and wants CUDA {target['cuda']}'s: "
            "set CUDA_HOME to such a toolkit, or serving on the GPU will fail"
        )
    if machine["compiler"] is None:
        notes.append("there is no c++, which those kernels and Triton want too: set CXX, or install g++")
    return refusals, notes


def torch_problem(target: dict[str, Any], machine: dict[str, Any]) -> str | None:
    """What is wrong with the torch that is there, or None."""
    expected = f"{target['torch']} for CUDA {target['cuda']}"
    if machine["torch"] is None:
        reason = machine["error"] or "no reason given"
        return f"{sys.executable} cannot import torch ({reason}), {expected} is expected"
    cuda = machine["cuda"] or "none"
    if machine["torch"].split("+")[0] == target["torch"] and cuda.split(".")[0] == target["cuda"]:
        return None
    return f"torch is {machine['torch']} for CUDA {cuda}, the pack's kernels were built for {expected}"


def numbers(version: str) -> tuple[int, ...]:
    """`2.34` -> (2, 34)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def print_report(manifest: dict[str, Any], machine: dict[str, Any]) -> None:
    """One line each: what is here, and what the pack would put before it."""
    carried = {one["name"]: one["version"] for one in manifest["distributions"]}
    for name in ("python", "system", "glibc", "cuda", "gpu", "nvcc", "compiler"):
        print(f"{name:<18} {machine[name] or 'none'}")
    for name, version in machine["packages"].items():
        print(f"{name:<18} {version or 'none':<18}" + (f" carried: {carried[name]}" if name in carried else ""))


def write_environment(prefix: Path, manifest: dict[str, Any], cuda_home: str | None) -> None:
    """`env.sh`, to be sourced: it holds all that makes the folder an installation."""
    lines = [
        f"export PYTHONPATH={shlex.quote(str(prefix / 'site'))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f"export PATH={shlex.quote(str(prefix / 'bin'))}:$PATH",
        *(f"export {name}={shlex.quote(value)}" for name, value in manifest["environment"].items()),
    ]
    if cuda_home:
        lines.append(f"export CUDA_HOME=${{CUDA_HOME:-{shlex.quote(cuda_home)}}}")
    (prefix / "env.sh").write_text("\n".join(lines) + "\n")


def check_imports(prefix: Path, manifest: dict[str, Any], *, gpu: bool) -> None:
    """Import every carried module and what a server starts with. Raises RefusedError naming those that fail.

    Without a GPU the project's CPU stand-in of sgl_kernel takes the place of the real one.
    """
    modules = [module for one in manifest["distributions"] for module in one["imports"]] + manifest["serving_modules"]
    environment = {**os.environ, **manifest["environment"]}
    entries = [str(prefix / "site"), os.environ.get("PYTHONPATH", "")]
    if not gpu:
        print(f"not tried without a GPU: {', '.join(NEEDS_GPU)} (the CPU stand-in serves the other modules' imports)")
        modules = [module for module in modules if module not in NEEDS_GPU]
        entries.insert(0, str(prefix / "site" / "adaptivespec" / "sglang_cpu" / "path"))
        environment |= {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, entries))
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        input=json.dumps(modules),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=prefix,
    )
    if done.returncode:
        raise RefusedError(f"the import check ended with code {done.returncode}: {done.stderr.strip()[-1000:]}")
    failed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    print(f"imported {len(modules) - len(failed)} of {len(modules)} modules")
    if failed:
        raise RefusedError(
            "installed, but these do not import:\n" + "\n".join(f"  {name}: {why}" for name, why in failed.items())
        )


def print_commands(prefix: Path, manifest: dict[str, Any]) -> None:
    """What to type next."""
    print("\nnext:\n  . " + shlex.quote(str(prefix / "env.sh")))
    for command in manifest["commands"]:
        print(f"  {shlex.quote(sys.executable)} {command}")


if __name__ == "__main__":
    main()
