"""The installer, run as on the target: it installs what was packed, or refuses and says why."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runners.pack import install
from tests.runners.pack.conftest import FILES, run_installer


def test_it_installs_what_was_packed_and_imports_it(pack: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "in stalled"
    done = run_installer(pack, "--prefix", str(prefix))
    assert done.returncode == 0, done.stderr
    assert "imported 3 of 3 modules" in done.stdout
    assert f"{sys.executable} -m one" in done.stdout
    assert (prefix / "site/one/data.bin").read_bytes() == FILES["one-1.0-py3-none-any.whl"]["one/data.bin"]
    script = '. "$1/env.sh" && echo "$PACK_TEST" && onetool && "$2" -c "import one, two; print(two.VALUE)"'
    sourced = subprocess.run(
        ["sh", "-c", script, "sh", str(prefix), sys.executable], capture_output=True, text=True, check=True
    )
    assert sourced.stdout.split("\n")[:3] == ["a b", "one", "2"]


def test_it_installs_over_an_older_pack_but_not_over_anything_else(pack: Path, tmp_path: Path) -> None:
    manifest = install.read_manifest(pack)
    prefix = tmp_path / "prefix"
    install.unpack(pack, manifest, prefix)
    (prefix / "site/stale.py").touch()
    install.unpack(pack, manifest, prefix)
    assert not (prefix / "site/stale.py").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").touch()
    with pytest.raises(install.RefusedError, match="not empty and holds no installed pack"):
        install.unpack(pack, manifest, tmp_path / "home")
    assert (tmp_path / "home/precious").exists()


@pytest.mark.parametrize("manifest", ['{"name": "app", "start_url": "/"}', '["site"]', "no JSON"])
def test_another_programs_manifest_does_not_make_a_folder_ours(pack: Path, tmp_path: Path, manifest: str) -> None:
    app = tmp_path / "app"
    (app / "site").mkdir(parents=True)
    (app / "manifest.json").write_text(manifest)
    with pytest.raises(install.RefusedError, match="holds no installed pack"):
        install.unpack(pack, install.read_manifest(pack), app)
    assert (app / "manifest.json").read_text() == manifest


@pytest.mark.parametrize("place", [".", ".."])
def test_the_carried_pack_is_never_installed_over(pack: Path, place: str) -> None:
    before = sorted(pack.rglob("*"))
    done = run_installer(pack, "--prefix", str(pack / place))
    assert done.returncode == 1
    assert "holds the pack's own parts" in done.stderr
    assert sorted(pack.rglob("*")) == before


@pytest.mark.parametrize("damage", ["flipped", "short", "missing"])
def test_a_damaged_part_is_named_and_nothing_is_unpacked(pack: Path, tmp_path: Path, damage: str) -> None:
    part = pack / "pack.tar.xz.01"
    content = bytearray(part.read_bytes())
    if damage == "flipped":
        content[7] ^= 1
    part.write_bytes(content[:-1] if damage == "short" else content)
    if damage == "missing":
        part.unlink()
    done = run_installer(pack, "--prefix", str(tmp_path / "prefix"))
    assert done.returncode == 1
    assert "pack.tar.xz.01" in done.stderr
    assert "Carry these parts again" in done.stderr
    assert not (tmp_path / "prefix").exists()


def test_another_torch_is_refused_without_the_flag(pack: Path, tmp_path: Path) -> None:
    torch = pack / "torches/torch.py"
    torch.write_text(torch.read_text().replace("2.11.0", "2.14.1"))
    done = run_installer(pack, "--prefix", str(tmp_path / "prefix"))
    assert done.returncode == 1
    assert "torch is 2.14.1+cu130 for CUDA 13.0, the pack's kernels were built for 2.11.0" in done.stderr
    assert not (tmp_path / "prefix").exists()
    done = run_installer(pack, "--prefix", str(tmp_path / "prefix"), "--any-torch")
    assert done.returncode == 0
    assert "because of --any-torch" in done.stdout


def test_a_module_that_does_not_import_is_named(pack: Path, tmp_path: Path) -> None:
    manifest = json.loads((pack / "manifest.json").read_text())
    manifest["serving_modules"] = ["one", "not_carried"]
    (pack / "manifest.json").write_text(json.dumps(manifest))
    done = run_installer(pack, "--prefix", str(tmp_path / "prefix"))
    assert done.returncode == 1
    assert "not_carried: ModuleNotFoundError" in done.stderr


def test_without_a_manifest_it_says_what_to_carry(tmp_path: Path) -> None:
    shutil.copy(install.__file__, tmp_path)
    done = run_installer(tmp_path, "--prefix", str(tmp_path / "prefix"))
    assert done.returncode == 1
    assert "carry manifest.json and all parts" in done.stderr


TARGET = {
    "python": "3.12",
    "torch": "2.11.0",
    "cuda": "13",
    "system": "Linux x86_64",
    "glibc": "2.34",
    "capability": [9, 0],
}


def test_the_expected_machine_passes_without_a_word(machine: dict[str, Any]) -> None:
    assert install.judge({"target": TARGET}, machine, any_torch=False) == ([], [])


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"python": "3.11.7"}, "Python 3.11.7"),
        ({"python": "3.120.0"}, "Python 3.120.0"),
        ({"system": "Linux aarch64"}, "Linux aarch64"),
        ({"glibc": "2.31"}, "glibc is 2.31"),
        ({"glibc": ""}, "not the C library"),
        ({"torch": "2.14.1+cu130"}, "torch is 2.14.1"),
        ({"torch": "2.11.0+cu128", "cuda": "12.8"}, "CUDA 12.8"),
        ({"torch": "2.11.0+cpu", "cuda": None}, "CUDA none"),
        ({"torch": None, "error": "ImportError: x"}, "ImportError: x"),
    ],
)
def test_another_machine_is_refused(machine: dict[str, Any], change: dict[str, Any], refused: str) -> None:
    (refusal,), notes = install.judge({"target": TARGET}, machine | change, any_torch=False)
    assert refused in refusal
    assert notes == []


@pytest.mark.parametrize(
    ("change", "noted"),
    [
        ({"gpu": None, "capability": None}, "no GPU"),
        ({"gpu": "NVIDIA A100", "capability": [8, 0]}, "will not load"),
        ({"nvcc": None}, "nvcc is not here"),
        ({"nvcc": "12.8"}, "nvcc is 12.8"),
        ({"compiler": None}, "no c++"),
    ],
)
def test_what_only_serving_needs_is_a_note(machine: dict[str, Any], change: dict[str, Any], noted: str) -> None:
    refusals, (note,) = install.judge({"target": TARGET}, machine | change, any_torch=False)
    assert refusals == []
    assert noted in note


def test_the_installer_stands_alone() -> None:
    tree = ast.parse(Path(install.__file__).read_text())
    tops = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert tops <= set(sys.stdlib_module_names)
