"""The packaged problems: kinds in turn, ids unique, golds right, demo and held-out items apart."""

import json
import re
from importlib import resources

import pytest

from adaptivespec.demo.sequences import shingles

KINDS = ("code", "arithmetic", "word")
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def rows(name: str) -> list[dict]:
    text = resources.files("adaptivespec.demo").joinpath(f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["problems", "problems_dev"])
def test_any_first_items_mix_the_kinds(name: str) -> None:
    items = rows(name)
    assert [item["kind"] for item in items] == [KINDS[index % 3] for index in range(len(items))]
    assert len({item["id"] for item in items}) == len({item["question"] for item in items}) == len(items)


@pytest.mark.parametrize("name", ["problems", "problems_dev"])
def test_golds_follow_from_the_questions_last_two_numbers(name: str) -> None:
    for item in rows(name):
        if item["kind"] != "code":
            a, b = map(int, re.findall(r"\d+", item["question"])[-2:])
            assert int(item["gold"]) in {operation(a, b) for operation in OPERATIONS.values()}, item["id"]


@pytest.mark.parametrize("name", ["problems", "problems_dev"])
def test_code_tests_call_the_function_and_refuse_an_empty_one(name: str) -> None:
    for item in rows(name):
        if item["kind"] == "code":
            assert f"`{item['gold']}`" in item["question"]
            namespace: dict = {item["gold"]: lambda *_: None}
            with pytest.raises((AssertionError, TypeError)):
                exec(item["tests"], namespace)


def test_held_out_items_are_not_the_demos() -> None:
    demo = {shingles(item["question"]) for item in rows("problems")}
    assert not [item["id"] for item in rows("problems_dev") if shingles(item["question"]) in demo]
