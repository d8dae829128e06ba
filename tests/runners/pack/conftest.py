"""A pack of two small wheels made on the fly, and a torch of five lines to install it beside; no network."""

import os
import platform
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from runners.pack import install, parts, tree

FILES = {
    "one-1.0-py3-none-any.whl": {
        "one/__init__.py": b"import two\n",
        "one/data.bin": bytes(range(256)) * 4000,
        "one-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: one\nVersion: 1.0\n",
        "one-1.0.data/scripts/onetool": b"#!/bin/sh\necho one\n",
        "one-1.0.data/headers/one.h": b"",
    },
    "two-2.0-py3-none-any.whl": {"two.py": b"VALUE = 2\n", "_hidden.py": b"", "two-2.0.dist-info/METADATA": b""},
}
PART_BYTES = 300
TORCH = """
from types import SimpleNamespace
__version__ = "2.11.0+cu130"
version = SimpleNamespace(cuda="13.0")
cuda = SimpleNamespace(is_available=lambda: False)
"""


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    """The wheels' paths."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, files in FILES.items():
        with zipfile.ZipFile(folder / name, "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)
    return sorted(folder.iterdir())


@pytest.fixture
def machine() -> dict[str, Any]:
    """A machine as the target is, but for the GPU."""
    return {
        "python": "3.12.3",
        "system": "Linux x86_64",
        "glibc": "2.39",
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "gpu": "NVIDIA H200",
        "capability": [9, 0],
        "nvcc": "13.0",
        "compiler": "/usr/bin/c++",
        "cuda_home": "/usr/local/cuda",
        "error": None,
        "packages": {},
    }


@pytest.fixture
def pack(tmp_path: Path, wheels: list[Path]) -> Path:
    """Folder of a pack for this very Python and the stand-in of torch, which lies in its folder `torches`."""
    folder = tmp_path / "pack"
    about = {
        "target": {
            "python": ".".join(platform.python_version_tuple()[:2]),
            "torch": "2.11.0",
            "cuda": "13",
            "system": f"{platform.system()} {platform.machine()}",
            "glibc": "2.17",
            "capability": [9, 0],
        },
        "environment": {"PACK_TEST": "a b"},
        "commands": ["-m one"],
        "serving_modules": ["one"],
        "distributions": [asdict(tree.describe(wheel)) for wheel in wheels],
    }
    parts.write(tree.all_files(wheels), folder, PART_BYTES, about)
    (folder / "torches").mkdir()
    (folder / "torches/torch.py").write_text(TORCH)
    (folder / "install.py").write_bytes(Path(install.__file__).read_bytes())
    return folder


def run_installer(pack: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`install.py` as it is run on the target: a lone file."""
    command = [sys.executable, str(pack / "install.py"), *arguments]
    env = {**os.environ, "PYTHONPATH": str(pack / "torches")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
