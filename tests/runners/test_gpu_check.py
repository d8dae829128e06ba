"""`make gpu-check` without a GPU: its models do what they are made for, its comparisons find faults, its page tells them."""

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from adaptivespec.accept import Strict, verify_batch
from runners.cli import compose_config
from runners.errors import ServerError
from runners.gpu_check import compare, models, page
from runners.gpu_check import servers as servers_module
from runners.gpu_check.__main__ import main, run
from runners.gpu_check.servers import KINDS, STATIC, Served, Servers, median_costs, spec_of
from runners.gpu_check.stages import LOADS, SIZES, Bench, Stage, plan
from runners.server import marked_processes
from tests.runners.test_server import spec as fake_spec


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> models.Pair:
    return models.make(models.SHAPES["tiny"], tmp_path_factory.mktemp("models"), "cpu", torch.float32)


def scores(folder: Path, head: str, pair: models.Pair) -> torch.Tensor:
    """What a head makes of each known token's bare code."""
    ends = load_file(pair.target / "ends.safetensors")
    codes = ends["model.embed_tokens.weight"][list(pair.tokens)].clone()
    codes[:, 0] = 0
    return codes @ load_file(folder / head)["lm_head.weight"].T


def test_the_target_mostly_maps_each_token_to_the_next_of_one_cycle(pair: models.Pair) -> None:
    token_map = models.make_token_map(pair.shape)
    best = scores(pair.target, "ends.safetensors", pair).topk(2).indices
    known = torch.stack([token_map.kept[token_map.successor], token_map.kept[token_map.runner_up]], dim=-1)
    assert torch.equal(best.sort().values, known.sort().values)
    assert (best[:, 0] == known[:, 0]).float().mean().item() > 0.85
    place, seen = 0, set()
    while place not in seen:
        seen.add(place)
        place = int(token_map.successor[place])
    assert len(seen) == len(token_map.kept)


def test_the_drafter_is_right_at_about_the_set_rate_and_else_takes_the_runner_up(pair: models.Pair) -> None:
    token_map = models.make_token_map(pair.shape)
    weights = load_file(pair.draft / "model.safetensors")
    drafted = scores(pair.draft, "model.safetensors", pair).argmax(-1)
    tokens = drafted + weights["d2t"][drafted]
    right = tokens == token_map.kept[token_map.successor]
    assert right.float().mean().item() == pytest.approx(models.RIGHT_RATE, abs=0.12)  # small codes overlap
    assert torch.equal(tokens[~right], token_map.kept[token_map.runner_up][~right])
    assert weights["t2d"].nonzero().flatten().tolist() == list(pair.tokens)


def test_models_are_made_once_and_again_when_their_settings_change(
    pair: models.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = pair.target / "ends.safetensors", pair.target.parent.parent
    written = file.stat().st_mtime_ns
    models.make(pair.shape, folder, "cpu", torch.float32)
    assert file.stat().st_mtime_ns == written
    monkeypatch.setattr(models, "NOISE_NATS", 0.5)
    models.make(pair.shape, folder, "cpu", torch.float32)
    assert file.stat().st_mtime_ns > written


def test_the_eights_have_the_real_models_size() -> None:
    """8.03 and 8.19 billion parameters at two bytes."""
    assert models.SHAPES["llama31_8b"].weights_gib == pytest.approx(14.96, abs=0.01)
    assert models.SHAPES["qwen3_8b"].weights_gib == pytest.approx(15.26, abs=0.01)


def test_rules_agree_and_a_wrong_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare.rules_on("cpu")
    assert found["wrong"] == []
    assert found["promoted"] > 20
    monkeypatch.setattr(compare, "verify_batch", lambda *args: verify_batch(*args[:3], [Strict()] * len(args[3])))
    assert compare.rules_on("cpu")["wrong"]


class Canned:
    """Stands for a server, where a real one on the CPU has no fault to show: it answers as told."""

    def __init__(self, change: dict[int, int], gap_nats: float = 0.0) -> None:
        self.change, self.gap_nats = change, gap_nats

    def generate(self, prompt: list[int], tokens: int, options: object = None) -> dict[str, Any]:
        places = range(len(prompt) - 1, len(prompt) - 1 + tokens)
        output = [self.change.get(place, 100 + place) for place in places]
        return {"output_ids": output, "meta_info": {"completion_tokens": tokens, "spec_verify_ct": tokens - 1}}

    def logprobs(self, prompt: list[int], output: list[int]) -> list[tuple[float, int, float, float]]:
        return [(-1.0 - self.gap_nats, 0, -1.0, -1.0)] * len(output)


@pytest.mark.parametrize(("gap_nats", "near_ties", "violations"), [(0.1, [3, 7], []), (0.5, [], [3])])
def test_a_comparison_goes_on_behind_a_near_tie_and_stops_at_a_violation(
    gap_nats: float, near_ties: list[int], violations: list[int]
) -> None:
    vanilla, served = cast(Served, Canned({}, gap_nats)), cast(Served, Canned({3: 1, 7: 1}))
    expected = [vanilla.generate([5], 10)["output_ids"]]
    found = compare.strict_against(vanilla, served, [[5]], expected, 0.3, together=False, named=True)
    assert [one["position"] for one in found["near_ties"]] == near_ties
    assert [one["position"] for one in found["violations"]] == violations


def test_books_that_do_not_balance_are_refused() -> None:
    told = {"committed": 8, "steps": 4, "steps_per_shape": {}}
    answer = {"meta_info": {"completion_tokens": 10, "spec_verify_ct": 4, "adaptivespec": told}}
    with pytest.raises(ValueError, match="booked 4 steps and 9 tokens, the engine 4 and 10"):
        compare.count(answer, compare.Counter(), compare.Counter())


def test_costs_are_medians_of_full_batches() -> None:
    steps = [
        *(
            {"shape": [3, 1, 4], "batch": 2, "step_ms": ms, "verify_ms": ms / 2, "graph": True}
            for ms in (1.0, 9.0, 2.0)
        ),
        {"shape": [3, 1, 4], "batch": 1, "step_ms": 50.0, "graph": True},
    ]
    assert list(median_costs(steps, 2)) == [
        {"shape": [3, 1, 4], "batch": 2, "steps": 3, "graph_replays": 3, "step_ms": 2.0, "verify_ms": 1.0}
    ]


def bench(tmp_path: Path) -> Bench:
    return Bench(compose_config(["engine.device=cpu"])["engine"], LOADS["cpu"], cast(Any, None), tmp_path, 0.3)


def test_a_failing_stage_costs_only_those_that_need_it(tmp_path: Path) -> None:
    def fail(_: Bench) -> Any:
        raise ServerError("no memory left")

    stages = (
        Stage("graphs", "m", fail, ("model",)),
        Stage("costs", "m", lambda _: ({"a": 1}, []), ("graphs",)),
        Stage("costs", "other", lambda _: ({"a": 1}, ["too few"]), ("graphs",)),
        Stage("end", "m", lambda _: ({"a": 1}, [])),
    )
    done: list[dict[str, Any]] = []
    for stage in stages:
        done.append(run(stage, bench(tmp_path), done))
    assert [one["status"] for one in done] == ["failed", "skipped", "failed", "passed"]
    assert done[0]["problems"] == ["no memory left"]
    document = {"schema": 1, "complete": False, "command": "c", "started_at": "t", "stages": done[:2]}
    page.write(tmp_path, document)
    text = (tmp_path / "check.md").read_text()
    assert text.startswith("# GPU check: FAILED so far")
    assert "- failed: no memory left" in text
    assert json.loads((tmp_path / "check.json").read_text()) == document


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("on_cuda", [False, True])
def test_every_stage_comes_after_what_it_needs(size: str, on_cuda: bool) -> None:
    seen: set[tuple[str, str | None]] = set()
    for stage in plan(size, on_cuda):
        assert all((need, stage.model) in seen for need in stage.needs)
        assert (stage.name, stage.model) not in seen
        seen.add((stage.name, stage.model))
    assert {model for name, model in seen if name == "lossless"} == set(SIZES[size])
    assert ("overlap", SIZES[size][0]) in seen or not on_cuda


def test_servers_on_a_gpu_run_with_the_harness_own_settings(pair: models.Pair, tmp_path: Path) -> None:
    engine = {
        **compose_config(["engine.device=cpu"])["engine"],
        "device": "cuda",
        "cuda_graph": True,
        "dtype": "bfloat16",
    }
    specs = {name: spec_of(kind, pair, engine, (1, 8), 100, tmp_path / "s") for name, kind in KINDS.items()}
    command = specs["eagle3"].command(1, "k")
    at = command.index("--cuda-graph-bs-decode")
    assert command[at : at + 4] == ["--cuda-graph-bs-decode", "1", "8", "--disable-prefill-cuda-graph"]
    assert specs["eagle3"].shape == STATIC
    assert "--disable-overlap-schedule" in command
    assert "--disable-overlap-schedule" not in specs["eagle3_overlap"].command(1, "k")
    assert "--disable-cuda-graph" not in command
    assert "ADAPTIVESPEC_STEP_TIMES" in specs["every_shape"].environment()
    assert "ADAPTIVESPEC_STEP_TIMES" not in specs["static"].environment()  # or its ratio to eagle3 would not be fair
    assert set(specs["vanilla"].environment()) == {"ADAPTIVESPEC_STEP_TIMES", "OMP_NUM_THREADS"}


def test_an_interrupt_ends_servers_that_are_still_starting(
    pair: models.Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "spec_of", lambda *_: fake_spec("hang"))
    engine = {"timeouts": {"start_s": 300.0, "request_s": 300.0, "stop_s": 10.0}}
    with Servers(engine, tmp_path, (1,), 8) as servers:
        servers._starters.submit(servers._start, pair, "vanilla")
        while not (servers._starting and marked_processes(servers._starting[0].id)):
            time.sleep(0.05)
        started = servers._starting[0].id
        # An interrupt leaves the block here.
    assert marked_processes(started) == []


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_check_passes_on_the_cpu(tmp_path: Path) -> None:
    folders = ["--out", str(tmp_path / "out"), "--logs", str(tmp_path / "logs")]
    assert main(["--size", "tiny", *folders, "engine.device=cpu"]) == 0
    document = json.loads((tmp_path / "out" / "check.json").read_text())
    assert document["complete"]
    assert [stage["status"] for stage in document["stages"]] == ["passed"] * len(list(plan("tiny", False)))
    by_name = {stage["name"]: stage["data"] for stage in document["stages"]}
    assert len(by_name["lossless"]["one by one"]["steps_per_shape"]) == len(by_name["graphs"]["shapes"]) > 8
    shapes = {json.dumps(row["shape"]) for row in by_name["costs"]["rows"]}
    assert len(shapes) == len(by_name["graphs"]["shapes"]) + 1  # and vanilla
    assert (tmp_path / "out" / "check.md").read_text().startswith("# GPU check: passed\n")
