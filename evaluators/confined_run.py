"""The process that runs one model-written program against its tests; started by evaluators.sandbox, never by hand.

Reads one JSON job on standard input, confines itself, and writes the verdict into the file `result` of its folder,
led by a secret that the program does not know: no exit code and nothing that the program prints can pass the tests.

    python -m evaluators.grade answers.jsonl
"""

import json
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from evaluators.confine import confine, limit
from evaluators.program import Program, find_program

PLAIN = (int, float, str, bytes, bool, type(None))


def main() -> None:
    """Judge one job; always ends the process."""
    job = json.load(sys.stdin)
    secret = job["secret"].encode()
    write, leave = os.write, os._exit  # the program may replace anything that it can reach by name
    result, extracted = os.open("result", os.O_WRONLY), os.open("program", os.O_WRONLY)
    sys.path.remove(job["import_root"])
    _redirect()
    limit(job["limits"])
    if job["confine"]:
        confine(job["readable"])
    try:
        verdict = run_script(job["script"]) if job["script"] else judge(job, extracted)
    except BaseException as error:
        verdict = f"raised {type(error).__name__}"
    write(result, secret + verdict.encode("utf-8", "replace")[:200])
    leave(0)


def _redirect() -> None:
    output, nothing = os.open("output", os.O_WRONLY), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def run_script(script: str) -> str:
    """`passed` if nothing is raised: a program and its tests in one namespace."""
    exec(compile(script, "<script>", "exec", dont_inherit=True), {})
    return "passed"


def judge(job: dict[str, Any], extracted: int) -> str:
    """`passed`, or why not; the program found goes to the file `extracted` before it runs."""
    program = find_program(job["answer"], job["prompt"], job["entry_point"])
    if program is None:
        return "no code"
    os.write(extracted, program.parts[-1].encode("utf-8", "replace"))
    os.close(extracted)
    answer = _run(program)
    function = answer.get(job["entry_point"])
    if not callable(function):
        return "no function"
    scope = _prompt_scope(job["prompt"], job["entry_point"])
    scope["candidate"] = scope[job["entry_point"]] = _plain_results(function)
    try:
        exec(compile(job["tests"], "<tests>", "exec", dont_inherit=True), scope)
    except AssertionError:
        return "wrong result"
    return "passed"


def _run(program: Program) -> dict[str, Any]:
    """Run the answer as a module of its own: not as __main__, and out of the tests' sight."""
    module = ModuleType("answer")
    sys.modules["answer"] = module
    for part in program.parts:
        exec(compile(part, "<answer>", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def _prompt_scope(prompt: str, entry_point: str) -> dict[str, Any]:
    """The names that the prompt defines, some of which its tests use; the function to complete is an empty one."""
    scope: dict[str, Any] = {"__name__": "tests"}
    if prompt:
        exec(compile(prompt + "\n    pass\n", "<prompt>", "exec", dont_inherit=True), scope)
    return scope


def _plain_results(function: Callable[..., Any]) -> Callable[..., Any]:
    def candidate(*args: Any, **kwargs: Any) -> Any:
        return plain(function(*args, **kwargs))

    return candidate


def plain(value: Any) -> Any:
    """The value with plain types all through: an object of the answer's own class could claim to equal anything."""
    kind = type(value)
    if kind in PLAIN:
        return value
    for base in (list, tuple, set, frozenset):
        if isinstance(value, base):
            items: Any = base.__iter__(value)  # type: ignore[arg-type]
            return base(plain(item) for item in items)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in dict.items(value)}
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return float.__add__(value, 0)
    if isinstance(value, str):
        return str.__getitem__(value, slice(None))
    if isinstance(value, bytes):
        return bytes.__getitem__(value, slice(None))
    if kind.__module__ in ("answer", "__main__"):
        raise TypeError("the function returns an object of a class of its own")
    return value


if __name__ == "__main__":
    main()
