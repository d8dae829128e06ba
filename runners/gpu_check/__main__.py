"""Runs the check and writes its page after every stage.

python -m runners.gpu_check --size 8b --models /data/random-models
python -m runners.gpu_check --size tiny engine.device=cpu engine.threads=1
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runners.cli import compose_config, raise_exit
from runners.errors import ServerError, UserError
from runners.gpu_check import page
from runners.gpu_check.servers import Servers
from runners.gpu_check.stages import LOADS, SIZES, Bench, Stage, plan


def main(argv: list[str] | None = None) -> int:
    """Return the exit status: 0 where every stage passed."""
    arguments = parse(argv)
    try:
        return check(arguments, compose_config(arguments.overrides))
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Interrupted; the page has what was found so far.", file=sys.stderr)
    return 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.gpu_check", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=sorted(SIZES), help="default: 8b with CUDA, tiny without")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="default: results/gpu, and results/gpu_check without CUDA"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", default=Path("results/gpu_check/logs"))
    parser.add_argument(
        "--models", type=Path, metavar="DIR", help="make the models here and keep them, or use what is there"
    )
    parser.add_argument("overrides", nargs="*", help="settings of conf/, as engine.device=cpu")
    return parser.parse_intermixed_args(argv)


def check(arguments: argparse.Namespace, config: dict[str, Any]) -> int:
    """Run all stages; what was found is on disk after each."""
    engine = config["engine"]
    device = engine["device"]
    size, load = arguments.size or ("8b" if device == "cuda" else "tiny"), LOADS[device]
    out = arguments.out or Path("results/gpu" if device == "cuda" else "results/gpu_check")
    shutil.rmtree(arguments.logs, ignore_errors=True)
    document: dict[str, Any] = {
        "schema": page.SCHEMA,
        "command": " ".join(["python -m runners.gpu_check", f"--size {size}", *arguments.overrides]),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "complete": False,
        "engine": engine,
        "stages": [],
    }
    # In float32 only what sums in another order move (analysis.lossless.FLOAT32_TIE_NATS).
    near_tie_nats = 1e-3 if engine["dtype"] == "float32" else config["lossless"]["near_tie_nats"]
    longest = load.prompt_tokens + max(load.tokens, load.cost_tokens, load.arm_tokens) + 16
    with models_folder(arguments.models) as folder, Servers(engine, arguments.logs, load.batches, longest) as servers:
        bench = Bench(engine, load, servers, folder, near_tie_nats)
        for stage in plan(size, bench.on_cuda):
            document["stages"].append(run(stage, bench, document["stages"]))
            page.write(out, document)
    document["complete"] = True
    page.write(out, document)
    failed = [stage for stage in document["stages"] if stage["status"] == "failed"]
    print(f"{len(failed)} of {len(document['stages'])} stages failed: {out}/check.md")
    return 1 if failed else 0


@contextlib.contextmanager
def models_folder(kept: Path | None) -> Iterator[Path]:
    """The given folder, or one that goes again."""
    if kept is not None:
        yield kept.expanduser().absolute()
    else:
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            yield Path(folder)


def run(stage: Stage, bench: Bench, done: list[dict[str, Any]]) -> dict[str, Any]:
    """Run one stage, whatever becomes of it; return its entry of the page."""
    print(f"{stage.title} ...", flush=True)
    begin_s = time.perf_counter()
    data: dict[str, Any] = {}
    broken = {(one["name"], one["model"]) for one in done if one["status"] != "passed" and not one["data"]}
    blocked = [need for need in stage.needs if (need, stage.model) in broken]
    if blocked:
        status, problems = "skipped", [f"needs {', '.join(blocked)}"]
    else:
        try:
            data, problems = stage.run(bench)
        except ServerError as error:
            problems = [str(error)]
        except Exception as error:  # a fault in one stage must not cost the others
            traceback.print_exc()
            problems = [f"{type(error).__name__}: {error}"]
        status = "failed" if problems else "passed"
    seconds = time.perf_counter() - begin_s
    print(f"  {status} after {seconds:.1f} s" + "".join(f"\n  {problem}" for problem in problems), flush=True)
    return {
        "name": stage.name,
        "model": stage.model,
        "status": status,
        "seconds": seconds,
        "problems": problems,
        "data": data,
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, raise_exit)
    sys.exit(main())
