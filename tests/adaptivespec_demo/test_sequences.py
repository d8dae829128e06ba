"""Cleaning: loops are cut where they show, near prompts are left out, the held-out split depends on the prompt alone."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptivespec.demo.sequences import (
    MIN_REPEAT,
    Generation,
    TrainingDataError,
    drop_near,
    loop_start,
    read_generations,
    split_held_out,
)


@given(st.lists(st.integers(0, 10**6), max_size=80, unique=True))
def test_text_without_repeats_is_kept(tokens: list[int]) -> None:
    assert loop_start(tokens) == len(tokens)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60, unique=True), st.integers(1, 40))
def test_a_loop_is_cut_at_its_first_long_repeat(head: list[int], period: int) -> None:
    block = [-1 - i for i in range(period)]
    shown = len(head) + period + max(MIN_REPEAT, period)
    assert loop_start(head + block * 60) == shown


def test_near_prompts_are_left_out_and_others_kept() -> None:
    texts = {
        1: "user Please work out 3 + 4 and explain the steps.",
        2: "user please work out 3 + 4, and explain the steps assistant",
        3: "user Name three rivers of Europe and their sources.",
    }
    generations = [Generation("k", (key,), (0,)) for key in texts]
    kept = drop_near(generations, ["Please work out 3 + 4 and explain the steps."], lambda ids: texts[ids[0]])
    assert [g.prompt_ids for g in kept] == [(3,)]


def test_the_split_depends_on_the_prompt_alone() -> None:
    generations = [Generation("k", (i, i + 1), (i,)) for i in range(500)]
    train, held_out = split_held_out(generations, every=10)
    assert len(train) + len(held_out) == 500
    assert 20 < len(held_out) < 90
    assert split_held_out(generations[::-1], every=10)[1] == held_out[::-1]
    assert split_held_out(held_out, every=10) == ([], held_out)


@pytest.mark.parametrize(
    "line", ['{"kind": "a", "prompt_ids": [1]}', "[1]", "{", '{"kind": "a", "prompt_ids": ["x"], "output_ids": []}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    good = json.dumps({"kind": "a", "prompt_ids": [1], "output_ids": list(range(20))})
    path = tmp_path / "generations.jsonl"
    path.write_text(good + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(TrainingDataError, match="line 2"):
        read_generations(path)


def test_a_missing_file_and_an_empty_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="cannot be read"):
        read_generations(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(TrainingDataError, match="nothing to learn"):
        read_generations(tmp_path / "empty.jsonl")
