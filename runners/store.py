"""A cell's folder: claimed by one writer at a time, appended line by line, sealed by `record.json`.

    with CellFolder(results_dir, ready.id).claim() as folder:
        folder.append(generation)

What lies in it is described in docs/data.md.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock


@dataclass(frozen=True)
class CellFolder:
    """Reads and writes one cell."""

    results_dir: Path
    cell_id: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.results_dir / self.cell_id

    @property
    def generations_path(self) -> Path:
        """Where outputs are appended."""
        return self.path / "generations.jsonl"

    @property
    def record_path(self) -> Path:
        """There if and only if the cell is complete."""
        return self.path / "record.json"

    def record(self) -> dict[str, Any] | None:
        """Return the record of a complete cell, else None."""
        if not self.record_path.is_file():
            return None
        document: dict[str, Any] = json.loads(self.record_path.read_text())
        return document

    def status(self) -> str:
        """`done`, `partial` or `missing`."""
        if self.record_path.is_file():
            return "done"
        return "partial" if self.generations_path.is_file() and self.generations_path.stat().st_size else "missing"

    @contextlib.contextmanager
    def claim(self) -> Iterator[CellFolder]:
        """Hold the cell against other processes; waits while another one works on it. A killed holder's claim ends with it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path / ".lock"):
            yield self

    def generations(self) -> list[dict[str, Any]]:
        """Return what is there, whole lines only; a line cut by a kill is set aside first. Call it with the claim held."""
        if not self.generations_path.is_file():
            return []
        data = self.generations_path.read_bytes()
        lines: list[dict[str, Any]] = []
        good = 0
        for line in data.splitlines(keepends=True):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("cut")
                lines.append(json.loads(line))
            except ValueError:
                break
            good += len(line)
        if good < len(data):
            self._set_aside(data[good:], good)
        return lines

    def _set_aside(self, broken: bytes, keep: int) -> None:
        number = len(list(self.path.glob("generations.broken-*.txt")))
        (self.path / f"generations.broken-{number}.txt").write_bytes(broken)
        with self.generations_path.open("r+b") as stream:
            stream.truncate(keep)

    def append(self, generation: dict[str, Any]) -> None:
        """Add one line and see it onto the disk."""
        with self.generations_path.open("ab") as stream:
            stream.write(json.dumps(generation, ensure_ascii=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder atomically."""
        scratch = self.path / f".{name}.{os.getpid()}.tmp"
        with scratch.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(self.path / name)

    def add_fault(self, fault: dict[str, Any]) -> None:
        """Keep a fault until the record is written, and after."""
        self.write("faults.json", json.dumps([*self.faults(), fault], indent=1))

    def faults(self) -> list[dict[str, Any]]:
        """Return what went wrong on the way."""
        path = self.path / "faults.json"
        return json.loads(path.read_text()) if path.is_file() else []

    def add_server_start(self, start: dict[str, Any]) -> None:
        """Remember a server start that this cell's outputs come from."""
        known = self.server_starts()
        if start["id"] not in {other["id"] for other in known}:
            self.write("servers.json", json.dumps([*known, start], indent=1))

    def server_starts(self) -> list[dict[str, Any]]:
        """Return the server starts so far."""
        path = self.path / "servers.json"
        return json.loads(path.read_text()) if path.is_file() else []
