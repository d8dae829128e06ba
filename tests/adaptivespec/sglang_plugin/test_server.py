"""What the plugin promises, on real servers (float32, CPU)."""

import json
import textwrap
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
import torch

from adaptivespec.demo.drafter import load_drafter
from adaptivespec.demo.evaluate import hits
from adaptivespec.demo.features import Featured, compute, load_target
from adaptivespec.demo.sequences import Generation
from adaptivespec.demo.unroll import Frozen
from tests.adaptivespec.sglang_plugin.conftest import Client, adaptive, body, serving

pytestmark = pytest.mark.server

PROMPTS = [[10, 20, 30], [200, 100], list(range(40, 80)), [7] * 5]  # the third is prefilled in chunks
STRICT = {"rule": "strict"}
LOSSY = {"rule": "margin", "kappa": 0.05, "max_promotions": None, "trace": True}


@pytest.fixture(scope="module")
def reference(vanilla: Client) -> list[list[int]]:
    """Vanilla's own outputs."""
    return [vanilla.generate(prompt, 96)["output_ids"] for prompt in PROMPTS]


def together(client: Client, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several requests at once."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        responses = list(pool.map(lambda content: client.post("/generate", content), bodies))
    assert [response.status_code for response in responses] == [200] * len(bodies)
    return [response.json() for response in responses]


def check_totals(answer: dict[str, Any], prefills: int = 1) -> dict[str, Any]:
    """The books balance with the engine's own."""
    meta = answer["meta_info"]
    totals: dict[str, Any] = meta["adaptivespec"]
    assert prefills + totals["committed"] == meta["completion_tokens"]
    assert totals["steps"] == meta.get("spec_verify_ct", 0) == sum(totals["steps_per_shape"].values())
    assert totals["promotions"] <= totals["accepted"] <= totals["committed"]
    trace = meta.get("adaptivespec_trace")
    assert totals["traced"] == (trace is not None)
    if trace is not None:
        assert len(trace) == totals["steps"]
        for name in ("accepted", "committed"):
            assert sum(step[name] for step in trace) == totals[name]
        assert sum(len(step["promoted"]) for step in trace) == totals["promotions"]
        check_promotions(trace, answer["output_ids"])
    return totals


def check_promotions(trace: list[dict[str, Any]], output_ids: list[int]) -> None:
    """Each promoted token stands in the output where its step committed it."""
    starts = accumulate((step["committed"] for step in trace), initial=1)
    for step, start in zip(trace, starts, strict=False):
        for promoted in step["promoted"]:
            assert start <= promoted["position"] < start + step["committed"]
            assert output_ids[promoted["position"]] == promoted["token"] != promoted["target_token"]
            assert 0 < promoted["margin"] <= 1


def test_strict_is_token_identical_under_a_swap_every_step(cycle: Client, reference: list[list[int]]) -> None:
    shapes: set[str] = set()
    for prompt, expected in zip(PROMPTS, reference, strict=True):
        answer = cycle.generate(prompt, 96, STRICT)
        totals = check_totals(answer)
        assert answer["output_ids"] == expected
        assert totals["rule"] == "strict"
        assert totals["accepted"] > 0
        shapes |= set(totals["steps_per_shape"])
    info = cycle.plugin_info()
    assert info is not None
    assert shapes == {",".join(map(str, shape)) for shape in info["shapes"]}


def test_r048_a_flush_makes_a_warm_prompt_cold_again(vanilla: Client) -> None:
    """What the harness relies on where it measures with the prefix cache on."""

    def cached_tokens() -> int:
        tokens: int = vanilla.generate(list(range(150, 180)), 4)["meta_info"]["cached_tokens"]
        return tokens

    cold, warm = cached_tokens(), cached_tokens()
    assert vanilla.post("/flush_cache", {}, params={"timeout": 30}).status_code == 200
    assert (cold, warm, cached_tokens()) == (0, 29, 0)


def test_kappa_above_one_is_strict(cycle: Client, reference: list[list[int]]) -> None:
    answer = cycle.generate(PROMPTS[0], 96, {"kappa": 1.5})
    assert answer["output_ids"] == reference[0]
    assert check_totals(answer)["promotions"] == 0


def test_the_margin_rule_promotes_and_the_trace_says_where(cycle: Client, reference: list[list[int]]) -> None:
    answers = [cycle.generate(prompt, 96, LOSSY) for prompt in PROMPTS]
    totals = [check_totals(answer) for answer in answers]
    assert sum(total["promotions"] for total in totals) > 10
    assert [answer["output_ids"] for answer in answers] != reference
    margins = [
        promoted["margin"]
        for answer in answers
        for step in answer["meta_info"]["adaptivespec_trace"]
        for promoted in step["promoted"]
    ]
    assert min(margins) >= 0.05
    strict = [cycle.generate(prompt, 96, STRICT)["meta_info"]["adaptivespec"] for prompt in PROMPTS]
    assert sum(total["steps"] for total in totals) < sum(total["steps"] for total in strict)


def test_strict_requests_in_a_lossy_batch_stay_identical(cycle: Client, reference: list[list[int]]) -> None:
    bodies = [body(prompt, 96, options) for prompt in PROMPTS for options in (STRICT, LOSSY)]
    answers = together(cycle, bodies)
    for answer in answers:
        check_totals(answer)
    assert [answer["output_ids"] for answer in answers[::2]] == reference
    assert any(answer["meta_info"]["adaptivespec"]["promotions"] for answer in answers[1::2])


def test_a_chain_accepts_what_the_drafter_drafts_in_plain_torch(chain: Client, models: tuple[Path, Path]) -> None:
    """Step by step: the engine's drafting is that of training (adaptivespec.demo.unroll), at every depth."""
    target = load_target(str(models[0]), torch.device("cpu")).float()  # as the server computes
    drafter = load_drafter(models[1], target)
    frozen = Frozen.of(target, drafter.d2t, 160)
    accepted: list[int] = []
    for prompt in PROMPTS:
        answer = chain.generate(prompt, 96, {**STRICT, "trace": True})
        output = answer["output_ids"]
        generation = Generation("tiny", tuple(prompt), tuple(output))
        sequence = Featured(torch.tensor(generation.ids), len(prompt), *compute(target, [generation]))
        hit, _ = hits(drafter, sequence, frozen, 7)
        right, start = hit.long().cumprod(0).sum(0).tolist(), 0  # drafts in a row, from each position of the output
        for step in answer["meta_info"]["adaptivespec_trace"][:-1]:  # the last one may be cut by the output's end
            assert step["accepted"] == right[start]
            accepted.append(step["accepted"])
            start += step["committed"]
    assert {0, 1, 2, 3, 4} <= set(accepted)


def test_under_a_static_shape_requests_do_not_influence_each_other(chain: Client) -> None:
    choices: list[dict[str, Any]] = [
        {"rule": "margin", "kappa": 0.02},
        {"rule": "margin", "kappa": 0.4},
        {"rule": "window", "w": 1, "theta": 0.05},
        STRICT,
    ]
    bodies = [body(prompt, 64, options) for prompt in PROMPTS[:2] for options in choices]
    alone = [chain.post("/generate", content).json() for content in bodies]
    batched = together(chain, bodies)
    assert [answer["output_ids"] for answer in batched] == [answer["output_ids"] for answer in alone]
    for answer, single in zip(batched, alone, strict=True):
        assert check_totals(answer) == check_totals(single)
    promotions = [answer["meta_info"]["adaptivespec"]["promotions"] for answer in alone]
    assert promotions[0] > promotions[1] >= 0
    assert promotions[2] > 0
    assert promotions[3] == 0


@pytest.mark.parametrize(("server", "rule"), [("cycle", STRICT), ("chain", LOSSY)])
def test_nothing_follows_a_stop_token(server: str, rule: dict[str, Any], request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(server)
    free = client.generate(PROMPTS[0], 96, rule)["output_ids"]
    for position in (5, 6, 7, 30, 31, 32):
        stop = free[position]
        answer = client.generate(PROMPTS[0], 96, rule, stop_token_ids=[stop], ignore_eos=False)
        check_totals(answer)
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        assert answer["output_ids"].index(stop) == len(answer["output_ids"]) - 1


def test_a_promoted_stop_token_ends_the_output(chain: Client) -> None:
    free = chain.generate(PROMPTS[0], 96, LOSSY)
    promoted = [p for step in free["meta_info"]["adaptivespec_trace"] for p in step["promoted"]]
    seen = free["output_ids"]
    stop = next(p["token"] for p in promoted if seen.index(p["token"]) == p["position"])
    answer = chain.generate(PROMPTS[0], 96, LOSSY, stop_token_ids=[stop], ignore_eos=False)
    check_totals(answer)
    assert answer["output_ids"] == seen[: seen.index(stop) + 1]
    last = answer["meta_info"]["adaptivespec_trace"][-1]
    assert last["promoted"][-1]["token"] == stop
    assert last["committed"] == last["accepted"]


@pytest.mark.parametrize("server", ["chain", "cycle"])  # increments, and everything so far in every chunk
def test_streamed_and_long_outputs_report_every_step(server: str, request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(server)
    content = {**body(PROMPTS[1], 400, LOSSY), "stream": True}
    chunks = []
    with client.post("/generate", content, stream=True) as response:
        for line in response.iter_lines():
            if line.startswith(b"data: {"):
                chunks.append(json.loads(line[6:]))
    assert len(chunks) > 20
    final = chunks[-1]
    if server == "chain":
        final["output_ids"] = [token for chunk in chunks for token in chunk["output_ids"]]
    assert len(final["output_ids"]) == 400
    check_totals(final)
    assert all("adaptivespec" not in chunk["meta_info"] for chunk in chunks[:-1])


def test_a_request_that_needs_no_step_reports_zero(chain: Client) -> None:
    assert check_totals(chain.generate(PROMPTS[0], 1))["steps"] == 0


def test_d_is_per_request_and_moves_the_shape(dcs: Client) -> None:
    wide = check_totals(dcs.generate(PROMPTS[0], 48, {"d": 1000}))
    deep = check_totals(dcs.generate(PROMPTS[0], 48, {"d": 1e-6, "kappa": 1e-6, "max_promotions": None}))
    assert set(wide["steps_per_shape"]) == {"3,4,4"}
    assert "7,1,8" in deep["steps_per_shape"]
    assert (wide["d"], deep["d"]) == (1000, 1e-6)
    assert dcs.generate(PROMPTS[0], 8)["meta_info"]["adaptivespec"]["d"] == 0.5


def test_the_trace_under_dcs_follows_its_formula(dcs: Client) -> None:
    trace = dcs.generate(PROMPTS[1], 64, {"trace": True})["meta_info"]["adaptivespec_trace"]
    assert len(trace) > 5
    for step in trace:
        assert 0 <= step["dcs"] <= 1
        assert abs(step["shape"][0] - (3 + 4 * step["dcs"])) <= 0.5
        assert step["shape"][2] == step["shape"][0] + 1


def test_a_policy_of_chains_reads_the_drafters_probabilities(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang itself hands on 1 for the probability of a chain's first draft."""
    registers = """
        from adaptivespec import options, tree
        from adaptivespec.shape import TreeShape

        class Chains(tree.DcsTree):
            name = "chains"

            def shapes(self):
                return (TreeShape(3, 1, 4), TreeShape(4, 1, 5))

            def select(self, mean_signal):
                return self.shapes()[mean_signal > 0.02]

        options.TREE_POLICIES["chains"] = Chains
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(registers))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    config = {"tree": {"policy": "chains", "d": 10, "alpha": 0.3, "breaker": None}}
    with serving(tmp_path / "log", models[0], *adaptive(models[1]), config=config) as client:
        trace = client.generate(PROMPTS[1], 48, {"trace": True})["meta_info"]["adaptivespec_trace"]
    rar, probabilities = 0.5, []
    for step in trace:
        probabilities.append(10 * step["dcs"] / rar)
        rar = 0.7 * rar + 0.3 * step["accepted"] / step["shape"][0]
    assert len(probabilities) > 5
    assert all(0 < probability < 0.9999 for probability in probabilities)


def test_the_breaker_trips_where_nothing_is_accepted(dcs: Client) -> None:
    # Id 299 is outside the drafter's vocabulary, so a bias towards it makes every draft wrong.
    answer = dcs.generate(PROMPTS[0], 16, {"rule": "strict", "trace": True}, logit_bias={"299": 1000.0})
    totals = check_totals(answer)
    assert answer["output_ids"] == [299] * 16
    assert totals["breaker_trips"] == 1
    assert all(step["shape"] == [3, 4, 4] for step in answer["meta_info"]["adaptivespec_trace"][5:])


def test_retracted_requests_keep_their_books(dcs: Client, reference: list[list[int]]) -> None:
    bodies = [body(prompt, 96, options) for prompt in PROMPTS for options in (STRICT, LOSSY)]
    answers = together(dcs, bodies)
    retractions = [answer["meta_info"]["num_retractions"] for answer in answers]
    assert sum(retractions) > 0
    for answer, retracted in zip(answers, retractions, strict=True):
        totals = answer["meta_info"]["adaptivespec"]
        # The prefill that resumes a retracted request yields a token without a verify step.
        assert 1 + retracted + totals["committed"] == answer["meta_info"]["completion_tokens"]
        assert totals["steps"] == answer["meta_info"]["spec_verify_ct"]
    assert [answer["output_ids"] for answer in answers[::2]] == reference


def test_aborts_leave_no_history_behind(cycle: Client) -> None:
    def abandon(content: dict[str, Any]) -> None:
        with cycle.post("/generate", {**content, "stream": True}, stream=True) as response:
            next(response.iter_lines())

    bodies = [body([10 + i, 20], 300, {"kappa": 0.05 + i / 10}) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        kept = [pool.submit(cycle.post, "/generate", content) for content in bodies[::2]]
        gone = [pool.submit(abandon, content) for content in bodies[1::2]]
        for future in gone:
            future.result()
        answers = [future.result().json() for future in kept]
    for answer in answers:
        check_totals(answer)
    cycle.post("/abort_request", {"rid": "", "abort_all": True})
    check_totals(cycle.generate(PROMPTS[0], 8))  # it lives, and has cleared the last batch
    info = cycle.plugin_info()
    assert info is not None
    assert info["histories"] == 0


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"kapa": 0.1}, "unknown kapa"),
        ({"kappa": 0}, "rule: strict"),
        ({"rule": "window"}, "chains only"),
        ({"d": 0.5}, "d belongs to dcs"),
        (0.1, "expected an object"),
    ],
)
def test_bad_options_are_refused_for_that_request_alone(cycle: Client, options: object, names: str) -> None:
    response = cycle.post("/generate", body(PROMPTS[0], 4, options))
    assert response.status_code == 400
    assert names in response.text
    check_totals(cycle.generate(PROMPTS[0], 4))


def test_bad_options_are_refused_on_the_openai_endpoint(cycle: Client) -> None:
    message = {"role": "user", "content": "t5"}
    content = {"model": "tiny", "messages": [message], "custom_params": {"adaptivespec": {"kappa": -1}}}
    response = cycle.post("/v1/chat/completions", content)
    assert response.status_code == 400
    assert "kappa=-1" in response.text


def test_sglangs_own_custom_params_pass_untouched(cycle: Client) -> None:
    content = body(PROMPTS[0], 8, {"kappa": 0.1})
    content["sampling_params"]["custom_params"]["thinking_budget"] = 5
    check_totals(cycle.post("/generate", content).json())


def test_our_options_are_refused_where_the_plugin_does_not_serve(vanilla: Client) -> None:
    assert vanilla.plugin_info() is None
    response = vanilla.post("/generate", body(PROMPTS[0], 4, {"kappa": 0.1}))
    assert response.status_code == 400
    assert "ADAPTIVESPEC" in response.text


def test_sampling_under_a_lossy_default_falls_back_to_strict_and_says_so(cycle: Client) -> None:
    totals = check_totals(cycle.generate(PROMPTS[0], 16, temperature=0.8))
    assert (totals["rule"], totals["kappa"], totals["promotions"]) == ("strict", None, 0)
    assert "temperature above 0" in totals["note"]
    refused = cycle.post("/generate", body(PROMPTS[0], 4, {"kappa": 0.1}, temperature=0.8))
    assert refused.status_code == 400
    assert "temperature" in refused.text


def test_a_greedy_lossy_request_keeps_its_rule_beside_sampled_ones(chain: Client) -> None:
    alone = chain.generate(PROMPTS[0], 64, LOSSY)
    mixed = together(chain, [body(PROMPTS[0], 64, LOSSY), body(PROMPTS[1], 64, None, temperature=0.8)])
    assert mixed[0]["output_ids"] == alone["output_ids"]
    assert check_totals(mixed[0])["promotions"] > 0
    assert check_totals(mixed[1])["note"] is None  # the server's default is strict already


def test_the_server_tells_what_it_runs(chain: Client, cycle: Client) -> None:
    info = chain.plugin_info()
    assert info is not None
    assert info["options"] == {"tree": {"policy": "static", "shape": [7, 1, 8]}, "accept": {"rule": "strict"}}
    assert info["shapes"] == [[7, 1, 8]]
    assert [one["shape"] for one in info["graphs"]] == [[7, 1, 8]]
    assert not info["graphs"][0]["verify_graph"]  # on a CPU
    assert info["version"]
    more = cycle.plugin_info()
    assert more is not None
    assert more["options"]["accept"] == {"rule": "margin", "kappa": 0.3, "max_promotions": 1}


def test_every_step_but_the_last_is_timed_with_its_shape_and_phases(chain: Client, logs: Path) -> None:
    def read() -> list[dict[str, Any]]:
        path = logs / "chain.steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    before = len(read())
    answer = chain.generate(PROMPTS[0], 64, STRICT)
    lines = read()[before:]
    assert len(lines) == answer["meta_info"]["spec_verify_ct"] - 1
    for line in lines:
        assert (line["shape"], line["batch"], line["graph"]) == ([7, 1, 8], 1, False)
        assert 0 < line["draft_ms"] + line["verify_ms"] + line["extend_ms"] < line["step_ms"]
        assert min(line["draft_ms"], line["verify_ms"], line["extend_ms"]) > 0


def test_prometheus_counts_what_requests_report(chain: Client) -> None:
    def read() -> dict[str, float]:
        lines = requests.get(chain.url + "/metrics", timeout=30).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("adaptivespec:")]
        return {name.split("{")[0]: float(value) for name, value in pairs}

    before = read()
    totals = check_totals(chain.generate(PROMPTS[0], 64, LOSSY))
    after = read()
    for name, total in (("steps", totals["steps"]), ("promotions", totals["promotions"])):
        assert after[f"adaptivespec:{name}_total"] - before[f"adaptivespec:{name}_total"] == total
    assert after["adaptivespec:histories"] == 0


def test_the_openai_client_streams_a_chat_with_custom_params(chain: Client) -> None:
    with openai.OpenAI(base_url=chain.url + "/v1", api_key="none", timeout=120) as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "t10 t20 t30"}],
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"custom_params": {"adaptivespec": LOSSY}, "ignore_eos": True},
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(text.split()) == 32
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 32
