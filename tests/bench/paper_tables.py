"""What the paper's five tables cost to print from all 135 cells with the full data sets' generations (89,235).

python tests/bench/paper_tables.py [--tokens 200]

Writes synthetic cells into a temporary folder, then prints the tables in a process of its own: seconds and resident memory.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from analysis.published import MODELS
from evaluators.problems import packaged
from tests.analysis.synthetic import A100, Item, Spec, write_cell

ITEMS = {name: int(packaged(name)["source"]["count"]) for name in ("gsm8k", "math500", "humaneval")}
ARMS = (
    *({"method": method} for method in ("vanilla", "eagle3", "talon", "fly")),
    *({"method": "dynamic", "d": d} for d in (0.2, 0.3, 0.4, 0.5)),
    *({"method": "lossy", "kappa": kappa} for kappa in (0.1, 0.2, 0.3)),
    *({"method": "combined", "kappa": kappa} for kappa in (0.05, 0.1, 0.2, 0.3)),
)


def write(folder: Path, tokens: int) -> tuple[int, int]:
    """Write all cells; return how many cells and generations."""
    chance, cells, generations = random.Random(0), 0, 0
    for model in MODELS:
        for benchmark, count in ITEMS.items():
            for arm in ARMS:
                items = [
                    Item(tokens, chance.uniform(1, 3), tokens // 3, correct=chance.random() < 0.8) for _ in range(count)
                ]
                write_cell(
                    folder, Spec(items=items, model=model, benchmark=benchmark, device="cuda", machine=A100, **arm)
                )
                cells, generations = cells + 1, generations + count
    return cells, generations


def main() -> None:
    """Write, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cells, generations = write(Path(folder), arguments.tokens)
        print(f"{cells} cells, {generations} generations of {arguments.tokens} tokens", flush=True)
        begin = time.perf_counter()
        command = [sys.executable, "-m", "analysis.tables", "all", "--results", folder, "--paper"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"all five tables: {seconds:.1f} s, at most {memory:.2f} GiB resident")


if __name__ == "__main__":
    main()
