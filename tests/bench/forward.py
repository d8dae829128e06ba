"""What a server's step stands beside: plain torch's forward of the demo's target in float32, behind 100 tokens.

python tests/bench/forward.py   # writes results/bench/forward.md

The linear layers alone, as torch's own and as ours (adaptivespec.sglang_cpu.linear), and the whole forward of
transformers with a cache; the median of 20, with as many threads as a server takes. Arguments are Hydra overrides.
"""

import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, DynamicCache

sys.path.insert(0, str(Path(__file__).parents[2]))

from adaptivespec.sglang_cpu.linear import PackedWeight
from analysis.bench import sentence
from analysis.render import Grid, render
from runners.cell import Cell
from runners.checkpoint import locate
from runners.cli import compose_config
from runners.provenance import describe_code, describe_machine

CONTEXT, ROUNDS = 100, 20
OUT = Path(__file__).parents[2] / "results/bench/forward.md"


def milliseconds(work: Callable[[], object]) -> float:
    """The median of `ROUNDS`, after one to warm up."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[1:])


@torch.inference_mode()
def main() -> None:
    """Print the table and write it to `OUT`."""
    cell = Cell.from_config(compose_config(["engine.device=cpu", *sys.argv[1:]]))
    torch.set_num_threads(cell.engine["threads"])
    folder = locate(cell.model["target"], "target").path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weights = [layer.weight for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    packed = [PackedWeight.pack(weight) for weight in weights]
    cache = DynamicCache()
    ids = torch.arange(CONTEXT + 8)[None]
    model(ids[:, :CONTEXT], past_key_values=cache)

    def forward(count: int) -> None:
        model(ids[:, CONTEXT : CONTEXT + count], past_key_values=cache)
        cache.crop(-count)

    rows = []
    for count in (1, 4, 8):
        inputs = [torch.randn(count, weight.shape[1]) for weight in weights]
        work = (
            lambda xs=inputs: [F.linear(x, w) for x, w in zip(xs, weights, strict=True)],
            lambda xs=inputs: [p.linear(x) for x, p in zip(xs, packed, strict=True)],
            lambda n=count: forward(n),
        )
        rows.append((str(count), *(f"{milliseconds(each):.1f}" for each in work)))
    size = sum(weight.nbytes for weight in weights) / 1e6
    title = f"A forward in plain torch, ms ({size:.0f} MB of weights, {torch.get_num_threads()} threads)"
    table = render(Grid(title, ("tokens", "linear layers", "packed", "whole forward"), tuple(rows)), "md")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    origin = {"begun": datetime.now(UTC).date().isoformat(), **describe_code(), "machine": describe_machine()}
    page = f"{sentence(origin)}\n\n{table}"
    OUT.write_text(page + "\n")
    print(page)


if __name__ == "__main__":
    main()
