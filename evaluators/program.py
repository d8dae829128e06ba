"""Find the program in a model's answer to a coding task, as a reader would; standard library only.

Answers come as a whole function or as a continuation of the prompt; in fences of any tag, unclosed, several, or none;
with prose around. This runs inside the sandbox, for even parsing hostile text can crash or stall an interpreter.

    python -m evaluators.grade answers.jsonl
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})(?P<tag>.*)$")
ONE_LINE_FENCE = re.compile(r"^```\w*[ \t]+(\S.*?)```[ \t]*$", re.MULTILINE)
CODE_START = re.compile(r"^(?:from\s|import\s|def\s|async\s+def\s|class\s|@|[A-Za-z_]\w*\s*(?::[^=]+)?=[^=])")
DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Program:
    """Sources to run in this order in one namespace, each compiled on its own: each may import __future__."""

    parts: tuple[str, ...]


def find_program(answer: str, prompt: str, entry_point: str) -> Program | None:
    """The program that the answer means, None where it holds no code that defines `entry_point`.

    `prompt` is the code that was to be completed, empty where the task was put in words.
    """
    preamble = _preamble(prompt, entry_point)
    blocks, text = _blocks(answer)
    for source in reversed(blocks):
        if _defines(source, entry_point):
            helpers = "\n".join(_definitions(other, entry_point) for other in blocks if other != source)
            return Program((preamble, helpers, source))
    for block in blocks:
        if (body := _continuation(block, prompt, entry_point)) is not None:
            return Program((body,))
    if _defines(text, entry_point):
        return Program((preamble, text))
    if (body := _continuation(text, prompt, entry_point)) is not None:
        return Program((body,))
    loose = list(_loose_code(text))
    if any(_defines(segment, entry_point) for segment in loose):
        return Program((preamble, *(_definitions(segment, None) for segment in loose)))
    return None


def _error_line(source: str) -> int | None:
    """Where a source stops to be Python, counted from 1; None where it is all Python."""
    try:
        compile(source, "<answer>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or source.count("\n") + 1
    except (ValueError, MemoryError, RecursionError, OverflowError):
        return source.count("\n") + 1
    return None


def _compiles(source: str) -> bool:
    return _error_line(source) is None


def _top_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from _top_level(getattr(statement, name, []))


def _binds(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return statement.name == name
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
    return False


def _is_stub(statement: ast.stmt) -> bool:
    """Only a docstring, `pass` or `...`: the prompt quoted, not an answer."""
    return isinstance(statement, FUNCTIONS) and all(
        isinstance(inner, ast.Pass) or (isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant))
        for inner in statement.body
    )


def _defines(source: str, name: str) -> bool:
    if not _compiles(source):
        return False
    bindings = [statement for statement in _top_level(ast.parse(source).body) if _binds(statement, name)]
    return bool(bindings) and not _is_stub(bindings[-1])


def _definitions(source: str, without: str | None) -> str:
    """The imports, functions, classes and assignments of a source, its calls and prints left out."""
    if not _compiles(source):
        return ""
    kept = [
        statement
        for statement in ast.parse(source).body
        if isinstance(statement, DEFINITIONS)
        and not (isinstance(statement, ast.AnnAssign) and statement.value is None)
        and not (without and _binds(statement, without))
    ]
    return "\n".join(ast.unparse(statement) for statement in kept)


def _preamble(prompt: str, entry_point: str) -> str:
    """What the prompt has before the function to complete: imports and helper functions."""
    start = re.search(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\b", prompt, re.MULTILINE)
    return prompt[: start.start()] if start else ""


def _blocks(answer: str) -> tuple[list[str], str]:
    """The fenced blocks, and the text outside of them up to a lone closing fence."""
    lines = ONE_LINE_FENCE.sub(r"```\n\1\n```", answer).split("\n")
    blocks: list[str] = []
    outside: list[str] = []
    index = 0
    while index < len(lines):
        fence = FENCE.match(lines[index])
        if fence is None:
            outside.append(lines[index])
            index += 1
        elif not blocks and not fence["tag"].strip() and not any(FENCE.match(line) for line in lines[index + 1 :]):
            break  # the prompt had opened this fence
        else:
            block, index = _block(lines, index, fence)
            blocks.append(block)
    return blocks, "\n".join(outside)


def _block(lines: list[str], start: int, fence: re.Match[str]) -> tuple[str, int]:
    """A block's source and the index of the line after it.

    A bare fence in a docstring does not end the block: the first end that leaves code that compiles does.
    """
    ends = [
        index
        for index in range(start + 1, len(lines))
        if (end := FENCE.match(lines[index])) and end["mark"].startswith(fence["mark"]) and not end["tag"].strip()
    ]
    for end_index in ends:
        source = _unindent(lines[start + 1 : end_index], fence["indent"])
        if _compiles(source) or _compiles("def body():\n" + textwrap.indent(textwrap.dedent(source), " ")):
            return source, end_index + 1
    if ends:
        return _unindent(lines[start + 1 : ends[0]], fence["indent"]), ends[0] + 1
    rest = _unindent(lines[start + 1 :], fence["indent"]).split("\n")
    return "\n".join(rest[: _longest_prefix(rest)]), len(lines)


def _unindent(lines: list[str], indent: str) -> str:
    return "\n".join(line.removeprefix(indent) for line in lines) + "\n"


def _longest_prefix(lines: list[str], head: str = "") -> int:
    """How many of the lines, behind `head`, are Python, cut where a line begins at column 0: the rest is no code."""
    end = len(lines)
    while end > 0:
        error = _error_line(head + "\n".join(lines[:end]) + "\n")
        if error is None:
            return end
        last = min(end - 1, error - 1 - head.count("\n"))
        end = next((cut for cut in range(last, 0, -1) if lines[cut].strip() and not lines[cut][0].isspace()), 0)
    return 0


def _continuation(text: str, prompt: str, entry_point: str) -> str | None:
    """The prompt with `text` as the rest of its last function, None where that is no code or adds nothing.

    What runs on behind the function is kept as far as it defines something.
    """
    whole_function = re.search(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\b", text, re.MULTILINE)
    if not prompt or not text.strip() or whole_function:
        return None
    head = prompt if prompt.endswith("\n") else prompt + "\n"
    for shape in _body_shapes(text):
        lines = shape.split("\n")
        source = head + "\n".join(lines[: _longest_prefix(lines, head)]) + "\n"
        if _defines(source, entry_point):
            return _definitions(source, None)
    return None


def _body_shapes(text: str) -> Iterator[str]:
    """The text as a body: as it is, indented as a whole, all but its first line, or behind a line of prose."""
    spaced = text.expandtabs(4)
    flat = textwrap.dedent(spaced).strip("\n")
    first, _, rest = flat.partition("\n")
    yield from (text, spaced, textwrap.indent(flat, "    "), f"    {first}\n{rest}")
    if indented := re.search(r"^    \S", spaced, re.MULTILINE):
        yield spaced[indented.start() :]


def _loose_code(text: str) -> Iterator[str]:
    """Pieces of code between lines of prose."""
    lines = text.split("\n")
    start = 0
    while start < len(lines):
        length = _longest_prefix(lines[start:]) if CODE_START.match(lines[start]) else 0
        if length:
            yield "\n".join(lines[start : start + length])
        start += max(1, length)
