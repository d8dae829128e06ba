"""What our plugin costs: ADAPTIVESPEC static (3,1,4) strict against SGLang's own EAGLE3 (3,1,4), interleaved.

python tests/bench/overhead.py --target TARGET --draft DRAFTER --rounds 5

Both servers are up at once and take turns, so that both see the same machine. Prints one line per round (seconds for
the same tokens) and the median ratio of throughputs, ours over SGLang's.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.adaptivespec.sglang_plugin.conftest import Client, adaptive, serving

PROMPTS = [[10 * i + j for j in range(12)] for i in range(1, 5)]
SHAPE = [3, 1, 4]


def seconds(client: Client, tokens: int) -> tuple[float, list[list[int]]]:
    """Time for all prompts, one after another, and the outputs."""
    begin = time.perf_counter()
    outputs = [client.generate(prompt, tokens)["output_ids"] for prompt in PROMPTS]
    return time.perf_counter() - begin, outputs


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    names = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
    shape = [part for name, value in zip(names, SHAPE, strict=True) for part in (f"--{name}", str(value))]
    stock = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(args.draft), *shape)
    config = {"tree": {"policy": "static", "shape": SHAPE}, "accept": {"rule": "strict"}}
    logs = Path(tempfile.mkdtemp(prefix="overhead-"))
    with (
        serving(logs / "eagle3.log", args.target, *stock) as eagle3,
        serving(logs / "static.log", args.target, *adaptive(args.draft), config=config) as static,
    ):
        seconds(eagle3, 16), seconds(static, 16)
        ratios = []
        for round_ in range(args.rounds):
            order = (eagle3, static) if round_ % 2 == 0 else (static, eagle3)
            times = {client: seconds(client, args.tokens) for client in order}
            (theirs, expected), (ours, outputs) = times[eagle3], times[static]
            if outputs != expected:
                raise SystemExit("outputs differ: nothing to compare")
            ratios.append(theirs / ours)
            print(f"round {round_ + 1}: EAGLE3 {theirs:.2f} s, static {ours:.2f} s, ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio of throughputs {statistics.median(ratios):.3f} over {args.rounds} rounds")


if __name__ == "__main__":
    main()
