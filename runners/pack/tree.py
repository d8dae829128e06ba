"""Which files of which wheel go into a pack, and where they lie in it.

`site/` goes on PYTHONPATH, `bin/` on PATH. A wheel's `.data` folders are laid where pip would lay them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from runners.pack.wheels import normal

LEFT_OUT = {
    "sglang": (
        "sglang/multimodal_gen/*",  # image and video generation
        "sglang/test/*",
        # The Rust server, its gRPC, its load generator, its image processing: all loaded on request only.
        "sglang/srt/rust_extensions/*.so",
        # Built for torch 2.14, it misreads the tensors of 2.11 and ends the scheduler; without it SGLang takes its Python twin.
        "sglang/srt/mem_cache/rust_tree_core/*.so",
    ),
    # 1.1 GB of other attention backends, and the operators of other GPUs: ours are Triton's and sm90/common_ops.
    "sglang-kernel": (
        "sgl_kernel/flash_ops.*",
        "sgl_kernel/flashmla_ops.*",
        "sgl_kernel/infllm_ops.*",
        "sgl_kernel/sm100/*",
    ),
    # Type stubs for completion in a notebook, and a second implementation beside the C one.
    "jedi": ("jedi/third_party/*",),
    "zstandard": ("zstandard/_cffi*", "zstandard/backend_cffi.py"),
}
"""Distribution -> patterns of files that stay behind; `*` spans folders."""


@dataclass(frozen=True)
class PackedFile:
    """One file of a pack."""

    path: PurePosixPath
    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class Distribution:
    """What the manifest tells of a wheel."""

    name: str
    version: str
    imports: tuple[str, ...]
    """Public top-level modules."""


def describe(wheel: Path) -> Distribution:
    """Name, version and modules of a wheel."""
    name, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as archive:
        paths = [PurePosixPath(entry) for entry in archive.namelist()]
    tops = {path.parts[0] for path in paths if len(path.parts) == 2 and path.name == "__init__.py"}
    tops |= {path.name.split(".")[0] for path in paths if len(path.parts) == 1 and path.suffix in (".py", ".so")}
    return Distribution(normal(name), version, tuple(sorted(top for top in tops if not top.startswith("_"))))


def modules(wheel: Path, packages: Sequence[str]) -> list[str]:
    """All importable modules of these packages of a wheel; not `__main__`, nor what lies outside a package."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.endswith(".py") and name.split("/")[0] in packages}
    inside = (name for name in sorted(names) if f"{name.rpartition('/')[0]}/__init__.py" in names)
    whole = (
        name
        for name in inside
        if all(f"{parent}/__init__.py" in names for parent in map(str, PurePosixPath(name).parents[:-1]))
    )
    return [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in whole if "__main__" not in name
    ]


def files(wheel: Path) -> Iterator[PackedFile]:
    """The files of a wheel that go into the pack, in order of their paths."""
    patterns = LEFT_OUT.get(describe(wheel).name, ())
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            if entry.is_dir() or any(fnmatch(entry.filename, pattern) for pattern in patterns):
                continue
            path = placed(PurePosixPath(entry.filename))
            if path is not None:
                mode = entry.external_attr >> 16
                yield PackedFile(path, archive.read(entry), executable=bool(mode & 0o111) or path.parts[0] == "bin")


def placed(path: PurePosixPath) -> PurePosixPath | None:
    """Where a wheel's file lies in the pack; None for headers and data, which nothing here reads."""
    top, *rest = path.parts
    if not top.endswith(".data"):
        return PurePosixPath("site", path)
    places = {"purelib": "site", "platlib": "site", "scripts": "bin"}
    return PurePosixPath(places[rest[0]], *rest[1:]) if rest[0] in places else None


def all_files(wheels: Sequence[Path]) -> Iterator[PackedFile]:
    """The files of all wheels. Two wheels may hold the same path only where the content is the same; raises ValueError."""
    seen: dict[PurePosixPath, int] = {}
    for wheel in wheels:
        for file in files(wheel):
            digest = hash(file.content)
            if seen.setdefault(file.path, digest) != digest:
                raise ValueError(
                    f"{file.path} comes from several wheels with different contents, last from {wheel.name}"
                )
            yield file
