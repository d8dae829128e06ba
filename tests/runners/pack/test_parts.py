"""The parts add up to what went in, and the same files give the same bytes."""

import hashlib
import json
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runners.pack import install, parts, tree
from runners.pack.tree import PackedFile
from tests.runners.pack.conftest import FILES, PART_BYTES


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(contents=st.lists(st.binary(max_size=3000), min_size=1, max_size=5), part_bytes=st.integers(10, 2000))
def test_what_goes_in_comes_out(tmp_path: Path, contents: list[bytes], part_bytes: int) -> None:
    files = [PackedFile(PurePosixPath(f"site/f{i}"), content, i % 2 == 0) for i, content in enumerate(contents)]
    manifest = parts.write(files, tmp_path, part_bytes, {})
    paths = [tmp_path / part["name"] for part in manifest["parts"]]
    assert set(tmp_path.glob(parts.PATTERN)) == set(paths)
    assert all(part["bytes"] == part_bytes for part in manifest["parts"][:-1])
    for path, part in zip(paths, manifest["parts"], strict=True):
        content = path.read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (part["bytes"], part["sha256"])
        assert 0 < len(content) <= part_bytes
    with install.JoinedParts(paths) as joined, tarfile.open(fileobj=joined, mode="r|xz") as tar:
        found = {}
        for member in tar:
            stream = tar.extractfile(member)
            assert stream is not None
            found[member.name] = (stream.read(), member.mode == 0o755)
    assert found == {str(file.path): (file.content, file.executable) for file in files}
    assert manifest["unpacked_bytes"] == sum(map(len, contents))
    assert manifest["files"] == len(contents)


def test_a_second_pack_is_the_same_and_leaves_nothing_of_a_larger_one(tmp_path: Path, wheels: list[Path]) -> None:
    first = parts.write(tree.all_files(wheels), tmp_path / "a", PART_BYTES, {})
    second = parts.write(tree.all_files(reversed(wheels)), tmp_path / "b", PART_BYTES, {})  # type: ignore[arg-type]
    assert first == second
    parts.write(tree.all_files(wheels), tmp_path / "a", 1 << 20, {})
    assert [path.name for path in (tmp_path / "a").glob(parts.PATTERN)] == ["pack.tar.xz.00"]


def test_a_part_of_no_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1 byte, got 0"):
        parts.write([], tmp_path, 0, {})


def test_wheels_lie_where_pip_would_lay_them(wheels: list[Path]) -> None:
    placed = {str(file.path): file for file in tree.all_files(wheels)}
    assert "site/one/data.bin" in placed
    assert placed["bin/onetool"].executable
    assert not placed["site/two.py"].executable
    assert not any("one.h" in path for path in placed)
    assert tree.describe(wheels[0]) == tree.Distribution("one", "1.0", ("one",))
    assert tree.describe(wheels[1]).imports == ("two",)


def test_the_modules_of_a_wheel_are_those_of_its_packages(tmp_path: Path) -> None:
    names = (
        "a/__init__.py",
        "a/b.py",
        "a/__main__.py",
        "a/path/c.py",
        "a/path/d/__init__.py",
        "a/e.txt",
        "f/__init__.py",
    )
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    assert tree.modules(tmp_path / "a-1-py3-none-any.whl", ("a",)) == ["a", "a.b"]


def test_two_wheels_that_disagree_about_a_file_are_refused(tmp_path: Path, wheels: list[Path]) -> None:
    with zipfile.ZipFile(tmp_path / "three-1-py3-none-any.whl", "w") as archive:
        archive.writestr("two.py", b"VALUE = 3\n")
    with pytest.raises(ValueError, match=r"site/two\.py comes from several wheels"):
        list(tree.all_files([*wheels, tmp_path / "three-1-py3-none-any.whl"]))


def test_what_is_left_out_stays_out(tmp_path: Path) -> None:
    kept = ("sgl_kernel/__init__.py", "sgl_kernel/sm90/common_ops.abi3.so")
    cut = ("sgl_kernel/sm100/common_ops.abi3.so", "sgl_kernel/flash_ops.abi3.so", "sgl_kernel/flashmla_ops.abi3.so")
    wheel = tmp_path / "sglang_kernel-0.4.5-cp310-abi3-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in (*kept, *cut):
            archive.writestr(path, b"")
    assert [str(file.path) for file in tree.files(wheel)] == [f"site/{path}" for path in kept]


def test_the_manifest_is_plain_json(pack: Path) -> None:
    manifest = json.loads((pack / parts.MANIFEST).read_text())
    assert manifest["schema"] == parts.SCHEMA == install.SCHEMA
    assert manifest["unpacked_bytes"] == sum(
        len(content) for files in FILES.values() for path, content in files.items() if "headers" not in path
    )
