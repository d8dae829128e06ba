"""Prompts to train on: generated word problems, sums and code requests, docstrings of installed packages, question files.

None comes from a test split; training leaves out what is near to a packaged problem (adaptivespec.demo.sequences).
"""

import ast
import importlib.util
import json
import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "Tom",
    "Anna",
    "Ben",
    "Lucy",
    "Sam",
    "Maria",
    "Jack",
    "Emma",
    "Leo",
    "Nina",
    "Omar",
    "Rosa",
    "Paul",
    "Kate",
    "Ivan",
    "Lily",
)
THINGS = (
    "apples",
    "pencils",
    "books",
    "marbles",
    "stickers",
    "coins",
    "cookies",
    "flowers",
    "balloons",
    "cards",
)
WORD = (
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
    "There are {a} {things} on the table. {name} takes {b} of them. How many {things} are left on the table?",
    "{name} buys {a} boxes with {b} {things} in each box. How many {things} is that in total?",
    "{name} shares {product} {things} equally among {b} friends. How many {things} does each friend get?",
    "A shop sold {a} {things} in the morning and {b} in the afternoon. How many {things} were sold that day?",
)
SUMS = ("What is {a} {op} {b}?", "Calculate {a} {op} {b}.", "Compute {a} {op} {b} and give the answer.")
VERBS = (
    "reverses",
    "sorts",
    "filters",
    "counts",
    "finds",
    "removes",
    "sums",
    "flattens",
    "prints",
    "rotates",
    "splits",
    "joins",
    "searches",
    "checks",
    "merges",
    "compares",
)
OBJECTS = (
    "a list of integers",
    "a string",
    "a dictionary by value",
    "a list of strings",
    "a matrix",
    "a nested list",
    "a tuple of floats",
    "a set of words",
    "a sentence",
    "a binary tree",
    "a linked list",
    "a file of lines",
)
COMPLETE = (
    "Complete the following Python function. Reply with the whole function in one code block.\n```python\n{stub}\n```"
)
STUB_CHARS = (80, 700)


@dataclass(frozen=True)
class Prompt:
    """One user message to train on."""

    kind: str
    question: str


def generated(count: int, seed: int) -> list[Prompt]:
    """`count` word problems, half as many sums, and every code request, in random order."""
    chance = random.Random(seed)
    prompts = [Prompt("code", f"Write a Python function that {verb} {noun}.") for verb in VERBS for noun in OBJECTS]
    for _ in range(count):
        a, b = chance.randint(8, 30), chance.randint(2, 9)
        words = {"name": chance.choice(NAMES), "things": chance.choice(THINGS), "a": a, "b": b, "product": a * b}
        prompts.append(Prompt("word", chance.choice(WORD).format(**words)))
    for _ in range(count // 2):
        a, b = chance.randint(10, 60), chance.randint(10, 60)
        prompts.append(Prompt("arithmetic", chance.choice(SUMS).format(a=a, b=b, op=chance.choice("+-*"))))
    chance.shuffle(prompts)
    return list(dict.fromkeys(prompts))


def docstrings(packages: Sequence[str], seed: int) -> list[Prompt]:
    """Functions with a docstring, of installed packages by name or the standard library (`stdlib`), to be completed."""
    stubs = {stub for package in packages for path in _sources(package) for stub in _stubs(path)}
    prompts = [Prompt("docstring", COMPLETE.format(stub=stub)) for stub in sorted(stubs)]
    random.Random(seed).shuffle(prompts)
    return prompts


def questions(path: Path) -> list[Prompt]:
    """A JSON Lines file with a `question` or a `problem` a line (GSM8K-train, MATH-train, one's own)."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [Prompt(path.stem, row["question"] if "question" in row else row["problem"]) for row in rows]


def _sources(package: str) -> Iterator[Path]:
    if package == "stdlib":
        folders = [sysconfig.get_paths()["stdlib"]]
    else:
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ValueError(f"--docstrings {package}: not installed; expected stdlib or an installed package's name.")
        folders = list(spec.submodule_search_locations or [])
    for folder in folders:
        found = sorted(Path(folder).rglob("*.py"))
        yield from (
            path for path in found if "site-packages" not in path.relative_to(folder).parts and "test" not in str(path)
        )


def _stubs(path: Path) -> Iterator[str]:
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):  # templates and files for other Pythons
        return
    lines = source.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and not node.name.startswith("_"):
            stub = "\n".join(lines[node.lineno - 1 : node.body[0].end_lineno])
            if STUB_CHARS[0] < len(stub) < STUB_CHARS[1] and "self" not in stub.split("\n", 1)[0]:
                yield stub
