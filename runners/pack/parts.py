"""Writes files as one compressed tar, split into parts of at most so many bytes, with a manifest of their hashes."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from runners.pack.tree import PackedFile

SCHEMA = 1
MANIFEST = "manifest.json"
PART_MIB = 60
PATTERN = "pack.tar.xz.*"


class PartWriter(io.RawIOBase):
    """A stream that goes on in the next file when one is full."""

    def __init__(self, folder: Path, part_bytes: int) -> None:
        if part_bytes < 1:
            raise ValueError(f"a part needs at least 1 byte, got {part_bytes}")
        self._folder, self._limit = folder, part_bytes
        self._file: io.BufferedWriter | None = None
        self._digest = hashlib.sha256()
        self._written = 0
        self.parts: list[dict[str, Any]] = []

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int:
        """Write all of `data`, over as many parts as it takes."""
        view = memoryview(data).cast("B")
        total = len(view)
        while view:
            if self._file is None:
                self._file = (self._folder / PATTERN.replace("*", f"{len(self.parts):02}")).open("wb")
            piece = view[: self._limit - self._written]
            self._file.write(piece)
            self._digest.update(piece)
            self._written += len(piece)
            view = view[len(piece) :]
            if self._written == self._limit:
                self._end_part()
        return total

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Close the last part."""
        self._end_part()
        self.close()

    def _end_part(self) -> None:
        if self._file is not None:
            self._file.close()
            name = Path(self._file.name).name
            self.parts.append({"name": name, "bytes": self._written, "sha256": self._digest.hexdigest()})
            self._file, self._digest, self._written = None, hashlib.sha256(), 0


def write(
    files: Iterable[PackedFile], folder: Path, part_bytes: int, about: Mapping[str, Any], preset: int = 1
) -> dict[str, Any]:
    """Write parts and manifest into `folder`, in the place of an older pack's; the same files give the same bytes.

    `about` goes into the manifest; `preset` is xz's: 1 is four times as fast as 6.
    Returns the manifest, which is written last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    for stale in folder.glob(PATTERN):
        stale.unlink()
    count = unpacked = 0
    # Files of a kind side by side compress better, and one wheel's path may come twice (an equal file of two wheels).
    unique = {file.path: file for file in files}
    with (
        PartWriter(folder, part_bytes) as writer,
        lzma.LZMAFile(writer, "wb", preset=preset) as packed,  # type: ignore[arg-type]
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in sorted(unique.values(), key=lambda file: (file.path.suffix, str(file.path))):
            entry = tarfile.TarInfo(str(file.path))
            entry.size, entry.mode = len(file.content), 0o755 if file.executable else 0o644
            tar.addfile(entry, io.BytesIO(file.content))
            count, unpacked = count + 1, unpacked + entry.size
    manifest = {"schema": SCHEMA, **about, "files": count, "unpacked_bytes": unpacked, "parts": writer.parts}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest
