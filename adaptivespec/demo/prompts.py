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
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

COMPLETE = (
    "Complete the following Python function. Reply with the whole function in one code block.\n```python\n{stub}\n```"
)
STUB_CHARS = (80, 700)


@dataclass(frozen=True)
class Prompt:
    """One user message to train on."""

    kind: str
    question: str


def _words() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("prompts.yaml").read_text(encoding="utf-8")
    words: dict[str, Any] = yaml.safe_load(text)
    return words


def generated(count: int, seed: int) -> list[Prompt]:
    """`count` word problems, half as many sums, and every code request, in random order."""
    words = _words()
    chance = random.Random(seed)
    prompts = [
        Prompt("code", f"Write a Python function that {verb} {noun}.")
        for verb in words["verbs"]
        for noun in words["objects"]
    ]
    prompts += [
        Prompt("code", request.format(function=function, task=task))
        for function, task in words["functions"].items()
        for request in words["requests"]
    ]
    for index in range(count):
        a, b = (
            (chance.randint(8, 30), chance.randint(2, 9))
            if index % 2
            else (chance.randint(2, 12), chance.randint(2, 9))
        )
        numbers = {"a": a, "b": b, "product": a * b, "total": a + b}
        names = {"name": chance.choice(words["names"]), "things": chance.choice(words["things"])}
        prompts.append(Prompt("word", chance.choice(words["word"]).format(**names, **numbers)))
    for index in range(count // 2):
        a, b, c = (chance.randint(10, 60) if index % 2 else chance.randint(2, 9) for _ in range(3))
        op = chance.choice("+-*x")
        prompts.append(Prompt("arithmetic", chance.choice(words["sums"]).format(a=a, b=b, c=c, op=op)))
    chance.shuffle(prompts)
    return list(dict.fromkeys(prompts))


def stubs(count: int, seed: int) -> list[Prompt]:
    """`count` made-up functions to complete, with a docstring and worked examples; their phrases are in prompts.yaml."""
    families = _words()["stubs"]
    chance = random.Random(f"stubs {seed}")
    every = [(f, w, e, r) for f in families for w in f["where"] for e in f["each"] for r in f["reduce"]]
    chosen = chance.sample(every, min(count, len(every)))
    return [Prompt("stub", COMPLETE.format(stub=_stub(*choice, chance))) for choice in chosen]


def _stub(family: dict[str, Any], where: str, each: str, reduce: str, chance: random.Random) -> str:
    (kept, condition), (part, mapped) = family["where"][where], family["each"][each]
    task, returns, reduced = family["reduce"][reduce]
    name = "_".join([reduce, *(word for word in (each, where) if word not in ("itself", "any"))])
    argument, noun = family["argument"], family["noun"]
    name = f"{name}_{noun}s" if name == reduce else name
    phrase = chance.choice(
        [
            f"{task} {part} for every {noun} that {kept}.",
            f"{task} {part}, over each {noun} of `{argument.split(':')[0]}` which {kept}.",
            f"Take each {noun} that {kept}. {task} {part}.",
        ]
    )
    examples = []
    for _ in range(chance.randint(1, 2)):
        values = (
            chance.choice(family["values"])
            if noun == "character"
            else chance.sample(family["values"], chance.randint(3, 6))
        )
        found = eval(f"[{mapped} for x in values if {condition}]", {"values": values})
        result = eval(str(reduced), {"found": found})
        examples.append(f"    >>> {name}({values!r})\n    {result!r}\n")
    head = chance.choice(["", "from typing import List\n\n\n", "from typing import Dict, List, Optional, Set\n\n\n"])
    return f'{head}def {name}({argument}) -> {returns}:\n    """ {phrase}\n' + "".join(examples) + '    """'


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
