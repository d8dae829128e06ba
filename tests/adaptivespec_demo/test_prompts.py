"""Prompts are reproducible, unlike the packaged problems, and answered once."""

import ast
import doctest
import json
import textwrap
from pathlib import Path

import pytest

from adaptivespec.demo.generate import answered, ask
from adaptivespec.demo.prompts import docstrings, generated, questions, stubs
from adaptivespec.demo.sequences import is_near, shingles
from adaptivespec.demo.shards import excluded_questions


def test_generated_prompts_depend_on_the_seed_alone_and_do_not_repeat() -> None:
    prompts = generated(50, seed=1)
    assert prompts == generated(50, seed=1)
    assert prompts != generated(50, seed=2)
    assert len(set(prompts)) == len(prompts)
    assert {prompt.kind for prompt in prompts} == {"code", "word", "arithmetic"}


def test_generated_prompts_are_not_near_a_packaged_problem() -> None:
    problems = [shingles(question) for question in excluded_questions(())]
    assert not [p.question for p in generated(400, seed=0) if is_near(shingles(p.question), problems)]


def test_stubs_are_functions_with_examples_and_no_body() -> None:
    prompts = stubs(100_000, seed=0)
    assert len(prompts) == len(set(prompts)) > 1000
    assert stubs(20, seed=1) == stubs(20, seed=1) != stubs(20, seed=2)
    for prompt in prompts[:200]:
        *_, function = ast.parse(prompt.question.split("```python\n")[1].split("\n```")[0]).body
        assert isinstance(function, ast.FunctionDef)
        assert len(function.body) == 1
        (example, *_) = doctest.DocTestParser().get_examples(ast.get_docstring(function) or "")
        assert example.source.startswith(f"{function.name}(")
        ast.literal_eval(example.want)


def test_docstring_prompts_hold_a_function_without_its_body() -> None:
    prompts = docstrings(["json"], seed=0)
    assert prompts
    for prompt in prompts:
        stub = prompt.question.split("```python\n")[1].split("\n```")[0]
        (function,) = ast.parse(textwrap.dedent(stub)).body
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function)
        assert len(function.body) == 1


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(ValueError, match="no_such_package: not installed"):
        docstrings(["no_such_package"], seed=0)


def test_question_files_of_both_forms_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "a?"}\n{"problem": "b?"}\n', encoding="utf-8")
    assert [(p.kind, p.question) for p in questions(path)] == [("mine", "a?"), ("mine", "b?")]


def test_a_line_cut_by_a_kill_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "generations.jsonl"
    whole = json.dumps({"kind": "a", "prompt_ids": [1, 2], "output_ids": [3]}) + "\n"
    path.write_text(whole + '{"kind": "a", "prom', encoding="utf-8")
    assert answered(path) == {(1, 2)}
    assert path.read_text(encoding="utf-8") == whole


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(SystemExit, match="cannot be reached"):
        ask("http://127.0.0.1:9", [[1]], 4)
