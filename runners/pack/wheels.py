"""Gathers the wheels that a pack is made of: pinned ones for the target machine by pip, and the project's own."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from runners.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PYTHON = "3.12"
TORCH = "2.11.0"
"""What sglang-kernel 0.4.5 in requirements.txt was built for."""
CUDA = "13"
GLIBC = (2, 34)
"""The newest that a wheel may ask for; SGLang's own asks for it. pip takes each tag literally, so all older ones are named too."""
SOURCE_ONLY = ("antlr4-python3-runtime==4.9.3",)
"""Pure Python that the index has as source only: built here. Hydra pins it."""


def gather(folder: Path) -> list[Path]:
    """Download and build everything into `folder`; what lies there already in the right version is not fetched again.

    Raises:
        UserError: with pip's last lines, where something is not to be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if missing := [requirement for requirement in pinned() if not matching(folder, requirement)]:
        pip("download", *target_options(), "--dest", str(folder), *missing)
    if missing := [requirement for requirement in SOURCE_ONLY if not matching(folder, requirement)]:
        pip("wheel", "--wheel-dir", str(folder), *missing)
    for stale in matching(folder, "adaptivespec"):
        stale.unlink()
    build_project(folder)
    return select(folder, [*pinned(), *SOURCE_ONLY, "adaptivespec"])


def pinned() -> list[str]:
    """`name==version` lines of the list, without comments."""
    lines = (line.partition("#")[0].strip() for line in REQUIREMENTS.read_text().splitlines())
    return [line for line in lines if line]


def target_options() -> list[str]:
    """pip's options for wheels of the target machine, whatever runs here."""
    tags = [f"manylinux_{GLIBC[0]}_{minor}_x86_64" for minor in range(GLIBC[1], 4, -1)]
    tags += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    platforms = [option for tag in tags for option in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON, *platforms]


def build_project(folder: Path) -> None:
    """Build the project's wheel from a copy of what git lists, so that no stale build folder gets in."""
    if not (ROOT / "pyproject.toml").is_file():
        raise UserError(
            f"{ROOT} is no checkout: a pack is made from a checkout of the project, not from an installed wheel"
        )
    listing = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()
    with tempfile.TemporaryDirectory() as source:
        for name in filter(lambda name: (ROOT / name).is_file(), names):
            copy = Path(source, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
        pip("wheel", "--wheel-dir", str(folder), source)


def select(folder: Path, requirements: Iterable[str]) -> list[Path]:
    """One wheel for each requirement; other ones that lie around are left out.

    Raises:
        UserError: naming what has no wheel in the folder, or several.
    """
    chosen = []
    for requirement in requirements:
        wheels = matching(folder, requirement)
        if len(wheels) != 1:
            names = ", ".join(path.name for path in wheels) or "none"
            raise UserError(
                f"one wheel of {requirement} is wanted in {folder}, there is: {names}. Empty the folder and go again"
            )
        chosen += wheels
    return chosen


def matching(folder: Path, requirement: str) -> list[Path]:
    """The wheels of `name` or `name==version` in the folder."""
    name, _, version = requirement.partition("==")
    found = []
    for path in sorted(folder.glob("*.whl")):
        own, its_version = path.name.split("-")[:2]
        if normal(own) == normal(name) and version in ("", its_version):
            found.append(path)
    return found


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(command: str, *arguments: str) -> None:
    """Run pip without dependencies. Raises UserError with its last lines."""
    line: Sequence[str] = [
        sys.executable,
        "-m",
        "pip",
        command,
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        *arguments,
    ]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-10:])
        raise UserError(
            f"{tail}\n`pip {command}` failed; is a package index reachable? `pip config list` shows which one is used"
        )
