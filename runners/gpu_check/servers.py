"""The servers of the check: the harness' own launcher with the harness' own engine settings, several at a time.

with Servers(engine, logs) as servers:
    servers.start(pair, ["vanilla", "every_shape"])
    servers["vanilla"].batch([[5, 6, 7]], 64)
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptivespec.options import STEP_TIMES_ENV, Options
from runners.errors import ServerError
from runners.gpu_check.models import Pair
from runners.server import Server, ServerSpec

STATIC = (3, 1, 4)
KAPPA = 0.3
MARGIN = {"rule": "margin", "kappa": KAPPA, "max_promotions": 1}
START_SHAPES = ((3, 4, 4), (7, 1, 8))


@dataclass(frozen=True)
class Kind:
    """One way to serve."""

    algorithm: str | None = None
    tree: Mapping[str, Any] | None = None
    rule: Mapping[str, Any] | None = None
    overlap: bool = False
    timed: bool = False
    """Whether the server writes its steps' times."""


KINDS = {
    "vanilla": Kind(timed=True),
    "every_shape": Kind("ADAPTIVESPEC", {"policy": "cycle"}, MARGIN, timed=True),
    "two_shapes": Kind("ADAPTIVESPEC", {"policy": "cycle", "table": [list(s) for s in START_SHAPES]}, MARGIN),
    "static": Kind("ADAPTIVESPEC", {"policy": "static", "shape": list(STATIC)}, {"rule": "strict"}),
    "eagle3": Kind("EAGLE3"),
    "vanilla_overlap": Kind(overlap=True),
    "eagle3_overlap": Kind("EAGLE3", overlap=True),
}


@dataclass(frozen=True)
class Served:
    """One running server and what is asked of it."""

    server: Server
    step_times: Path

    @property
    def plugin(self) -> dict[str, Any]:
        """What the plugin tells of itself. Raises ServerError where it does not serve."""
        told: dict[str, Any] | None = self.server.get("/server_info")["internal_states"][0].get("adaptivespec")
        if told is None:
            raise ServerError("/server_info has no `adaptivespec`: the plugin does not serve")
        return told

    def generate(
        self, prompt: Sequence[int], tokens: int, options: Mapping[str, Any] | None = None, **body: Any
    ) -> dict[str, Any]:
        """One greedy completion of exactly `tokens` tokens; `options` are the plugin's."""
        sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        if options is not None:
            sampling["custom_params"] = {"adaptivespec": dict(options)}
        content = {"input_ids": list(prompt), "sampling_params": sampling, **body}
        answer = self.server.post("/generate", content, self.server.timeouts["request_s"])
        made = len(answer["output_ids"])
        if made != tokens:
            raise ServerError(f"asked for {tokens} tokens and got {made}: {answer['meta_info'].get('finish_reason')}")
        return answer

    def batch(
        self, prompts: Sequence[Sequence[int]], tokens: int, options: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """All prompts at once."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.generate(prompt, tokens, options), prompts))

    def tokens_per_second(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Output tokens of all prompts at once over wall time, prefill included."""
        begin_s = time.perf_counter()
        self.batch(prompts, tokens)
        return len(prompts) * tokens / (time.perf_counter() - begin_s)

    def logprobs(self, prompt: Sequence[int], output: Sequence[int]) -> list[tuple[float, int, float, float]]:
        """Teacher-forced, per output token: (its log-probability, the best token, the best and second log-probability)."""
        answer = self.generate(
            [*prompt, *output], 1, return_logprob=True, top_logprobs_num=2, logprob_start_len=len(prompt) - 1
        )
        meta = answer["meta_info"]
        own, top = meta["input_token_logprobs"][-len(output) :], meta["input_top_logprobs"][-len(output) :]
        told = [entry[1] for entry in own]
        if told != list(output):
            raise ServerError(f"input_token_logprobs are of the tokens {told}, asked for those of {list(output)}")
        return [(one[0], best[1], best[0], second[0]) for one, (best, second, *_) in zip(own, top, strict=True)]

    def steps(self) -> list[dict[str, Any]]:
        """Times of the steps so far."""
        if not self.step_times.is_file():
            return []
        return [json.loads(line) for line in self.step_times.read_text().splitlines(True) if line.endswith("\n")]


class Servers:
    """Running servers by kind; a context manager that ends them all."""

    def __init__(self, engine: Mapping[str, Any], logs: Path, batches: Sequence[int], max_tokens: int) -> None:
        self.engine, self.logs, self.batches, self.max_tokens = engine, logs, tuple(batches), max_tokens
        self.started: list[dict[str, Any]] = []
        self._running: dict[str, Served] = {}
        self._starting: list[Server] = []
        # A server is killed when the thread that started it ends (PR_SET_PDEATHSIG), so the threads stay for as long as we do.
        self._starters = ThreadPoolExecutor(len(KINDS))

    def __enter__(self) -> Servers:
        """Nothing runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all servers, also those that are still starting: their threads see that and end too."""
        self._starters.shutdown(wait=False, cancel_futures=True)
        stop_together([*self._starting, *(served.server for served in self._running.values())])
        self._starters.shutdown()

    def __getitem__(self, kind: str) -> Served:
        """The running server of a kind. Raises ServerError where it could not be started."""
        if kind not in self._running:
            raise ServerError(f"server {kind} does not run: see the stage that starts it")
        return self._running[kind]

    def start(self, pair: Pair, kinds: Sequence[str]) -> None:
        """Start those of these kinds that do not run yet, at the same time; those that start keep running where others fail.

        Raises:
            ServerError: naming each kind that did not start, and why.
        """
        waiting, failures = [kind for kind in kinds if kind not in self._running], []
        for kind, future in [(kind, self._starters.submit(self._start, pair, kind)) for kind in waiting]:
            try:
                future.result()
            except ServerError as error:
                failures.append(f"{kind}: {error}")
        if failures:
            raise ServerError("; ".join(failures))

    def stop(self, *kinds: str) -> None:
        """End these servers; those that do not run are ended already."""
        stop_together([self._running.pop(kind).server for kind in kinds if kind in self._running])

    def stop_all(self) -> None:
        """End all servers."""
        self.stop(*self._running)

    def _start(self, pair: Pair, kind: str) -> None:
        name = f"{pair.shape.name}-{kind}"
        step_times = self.logs / f"{name}.steps.jsonl"
        spec = spec_of(KINDS[kind], pair, self.engine, self.batches, self.max_tokens, step_times)
        # The wait for the driver's memory sees processes by their ids in another namespace in some containers, and ours is one of
        # them: what is left of it must not take minutes of the check.
        timeouts = {**self.engine["timeouts"], "stop_s": min(10.0, self.engine["timeouts"]["stop_s"])}
        server = Server(spec, self.logs / f"{name}.log", timeouts)
        self._starting.append(server)
        try:
            server.__enter__()
        finally:
            self._starting.remove(server)
        self._running[kind] = Served(server, step_times)
        self.started.append({"model": pair.shape.name, "kind": kind, "ready_s": server.ready_s})


def stop_together(servers: Sequence[Server]) -> None:
    """End these servers at the same time."""
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        list(pool.map(Server.stop, servers))


def spec_of(
    kind: Kind, pair: Pair, engine: Mapping[str, Any], batches: Sequence[int], max_tokens: int, step_times: Path
) -> ServerSpec:
    """What a server of this kind is started with: `conf/engine`, and what several servers on one device need."""
    cuda = engine["device"] == "cuda"
    # Graphs of the measured batch sizes only: the time of a start goes into capturing.
    graphs = {"cuda-graph-bs-decode": sorted(batches), "disable-prefill-cuda-graph": True} if cuda else {}
    own_engine = {
        **engine,
        "concurrency": max(batches),
        "overlap_schedule": kind.overlap,
        "server_args": {"max-total-tokens": 2 * max(batches) * max_tokens, **graphs, **engine["server_args"]},
    }
    options = None
    if kind.algorithm == "ADAPTIVESPEC":
        options = Options.parse({"tree": kind.tree, "accept": kind.rule}).to_dict()
    return ServerSpec(
        target=pair.target,
        draft=pair.draft if kind.algorithm else None,
        algorithm=kind.algorithm,
        shape=STATIC if kind.algorithm == "EAGLE3" else None,
        options=options,
        engine=own_engine,
        seed=0,
        variables={STEP_TIMES_ENV: str(step_times)} if kind.timed else {},
    )


def median_costs(steps: Sequence[Mapping[str, Any]], batch: int) -> Iterator[dict[str, Any]]:
    """Per shape (null: vanilla): median milliseconds of a step of this batch size and of its phases."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        if step["batch"] == batch:
            groups.setdefault(json.dumps(step["shape"]), []).append(step)
    for shape, group in groups.items():
        names = [name for name in ("step_ms", "draft_ms", "verify_ms", "extend_ms") if name in group[0]]
        medians = {name: statistics.median(step[name] for step in group) for name in names}
        replayed = sum(bool(step.get("graph")) for step in group)
        yield {"shape": json.loads(shape), "batch": batch, "steps": len(group), "graph_replays": replayed, **medians}
