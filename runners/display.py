"""What the person sees while cells run: a progress bar, one aligned line per finished cell, faults, and the table at the end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from runners.resolve import Ready

if TYPE_CHECKING:
    from runners.group import Outcome


class Display:
    """Progress on stderr, results on stdout."""

    def __init__(self, n_cells: int, results_dir: Path) -> None:
        self.n_cells, self.results_dir = n_cells, results_dir
        self.n_finished = 0
        self.console = Console(stderr=True, highlight=False)
        self._status = self.console.status("")

    def starting(self, what: str, n_cells: int) -> None:
        """A server is about to start."""
        self.note(f"Starting SGLang ({what}) for {n_cells} cell{'s' * (n_cells != 1)} ...")

    def server_line(self, line: str) -> None:
        """The server's newest log line while it loads."""
        if self.console.is_terminal:
            self._status.update(line[: self.console.width - 10])
            self._status.start()

    def note(self, text: str) -> None:
        """One line to the person."""
        self._status.stop()
        self.console.print(text, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def cell(self, ready: Ready, n_done: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """A bar over the cell's prompts; call what it yields with each generation."""
        self._status.stop()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        if n_done:
            self.note(f"  {ready.cell.label}: {n_done} of {len(ready.prompts)} outputs are there already")
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(ready.cell.label, total=len(ready.prompts), completed=n_done, speed="")

            def advance(line: Mapping[str, Any]) -> None:
                progress.update(task, advance=1, speed=f"{line['output_tokens'] / line['latency_s']:.1f} tok/s")

            yield advance

    def fault(self, ready: Ready, error: Exception) -> None:
        """Something went wrong; the sweep goes on."""
        self.note(f"  FAULT in {ready.cell.label}: {error}")

    def finished(self, outcome: Outcome, cached: bool = False) -> Outcome:
        """Print the cell's line and pass the outcome on."""
        self.n_finished += 1
        self._status.stop()
        print(
            f"[{self.n_finished}/{self.n_cells}] {row(outcome, self.results_dir)}{'  (was done)' if cached else ''}",
            flush=True,
        )
        return outcome


def row(outcome: Outcome, results_dir: Path) -> str:
    """One aligned line: method, model, benchmark, throughput, tau, accuracy, path."""
    cell = outcome.cell
    name = f"{cell.method_label:<26} {cell.model['name']:<14} {cell.benchmark['name']:<10}"
    if outcome.record is None or outcome.ready is None:
        return f"{name} FAILED: {str(outcome.failure).splitlines()[0]}"
    metrics = outcome.record["metrics"]
    tau = "     -" if metrics["tau"] is None else f"{metrics['tau']:6.2f}"
    path = results_dir / outcome.ready.id
    return f"{name} {metrics['throughput_tok_s']:8.1f} tok/s  tau {tau}  accuracy {100 * metrics['accuracy']:5.1f} %  {path}"


def analyse(module: str, *arguments: str) -> int:
    """Run a program of the analysis and return its exit status: it is one of its own, so that it can be run again without this one."""
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", f"analysis.{module}", *arguments], check=False).returncode
