"""Run model-written programs, each in a confined process of its own, or refuse to.

A program gets the limits of conf/benchmark, an empty folder, an empty environment and no standard input; its process
group is killed when the wall-clock limit is over. One that is ready to run and only lacks a free core is waited for.
What the kernel refuses it: evaluators/confine.py.

    python -m evaluators.grade answers.jsonl
"""

import contextlib
import functools
import json
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from evaluators.confine import landlock_abi, supported

IMPORT_ROOT = str(Path(__file__).resolve().parents[1])
# On a machine so busy that programs cannot run, their wall-clock limit is given this often; the CPU limit holds all the same.
PATIENCE = 30
SELF_TEST_LIMITS = {"cpu_s": 5, "wall_s": 15, "memory_mib": 2048, "output_mib": 1}


REMEDY = (
    "Expected Linux on x86-64 or arm64 with Landlock (kernel 5.13 or later, `landlock` among the names in "
    "/sys/kernel/security/lsm; the kernel option lsm= adds it; in a container, its seccomp profile must let it through). "
    "On a machine that you can throw away, grading.allow_unconfined=true (--allow-unconfined) runs it all the same."
)


class SandboxError(RuntimeError):
    """The sandbox cannot judge: it is not available, or it broke."""


@dataclass(frozen=True)
class Task:
    """A program to judge."""

    answer: str
    """The model's answer, reasoning already removed."""
    entry_point: str
    tests: str
    """Python that raises AssertionError where `candidate` (also known by its own name) is wrong."""
    prompt: str = ""
    """The code that the answer may continue."""


@dataclass(frozen=True)
class Outcome:
    """What became of a program."""

    verdict: str
    """`passed`, or a short reason why not."""
    program: str | None = None
    """The code that was found in the answer."""


def run(task: Task, limits: Mapping[str, float]) -> Outcome:
    """Judge one answer against its tests; raises SandboxError where the sandbox breaks.

    `limits`: cpu_s, wall_s, memory_mib, output_mib. Call `require` first.
    """
    return _run({**vars(task), "script": None}, limits, confine=supported())


def run_script(script: str, limits: Mapping[str, float]) -> str:
    """Run a whole script: `passed` if it raises nothing; raises SandboxError."""
    return _run({"script": script}, limits, confine=supported()).verdict


def _run(job: Mapping[str, Any], limits: Mapping[str, float], *, confine: bool) -> Outcome:
    secret = secrets.token_hex(16)
    setting = {"limits": dict(limits), "confine": confine, "readable": _readable(), "import_root": IMPORT_ROOT}
    with tempfile.TemporaryDirectory(prefix="adaptivespec-") as name:
        folder = Path(name)
        for file in ("result", "program", "output"):
            (folder / file).touch()
        code = _execute(json.dumps({**job, **setting, "secret": secret}), name, limits["wall_s"])
        result = _read(folder / "result")
        judged = result.startswith(secret)
        verdict = result.removeprefix(secret) if judged else _explain(code, _read(folder / "output"))
        return Outcome(verdict, _read(folder / "program") or None)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(1 << 16).decode("utf-8", "replace")


def _execute(job: str, folder: str, wall_s: float) -> int | None:
    """The exit code, None where the time was over."""
    command = [sys.executable, "-s", "-P", "-B", "-m", "evaluators.confined_run"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={"PYTHONPATH": IMPORT_ROOT, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
        text=True,
    ) as process:
        try:
            for attempt in range(PATIENCE):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    # A later call goes on with the first one's input.
                    process.communicate(None if attempt else job, timeout=wall_s)
                    return process.returncode
                if not _wants_cpu(process.pid):
                    return None
            return None
        finally:
            _kill_group(process.pid)


def _wants_cpu(pid: int) -> bool:
    """Whether a program is held up by the machine, not by itself: ready to run, or waiting for the disk."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    return True  # it ends just now


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _explain(code: int | None, output: str) -> str:
    if code is None or code == -signal.SIGXCPU or code == -signal.SIGKILL:
        return "timeout"
    if "ConfinementError" in output:
        raise SandboxError(f"The sandbox broke: {output.strip()[-300:]}")
    return f"ended with exit code {code} before its tests did"


def _readable() -> list[str]:
    """The Python installation and the system's libraries."""
    paths = {sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return sorted({*paths, "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom"})


ESCAPES = """
import os, socket
def escapes():
    tries = {
        "write": lambda: open(%r, "w"),
        "create": lambda: open(%r + ".new", "w"),
        "truncate": lambda: os.truncate(%r, 0),
        "fork": os.fork,
        "execute": lambda: os.execv("/bin/true", ["true"]),
        "kill": lambda: os.kill(%d, 0),
        "connect": lambda: socket.socket(),
    }
    done = []
    for name, attempt in tries.items():
        try:
            attempt()
            done.append(name)
        except OSError:
            pass
    return done
"""


@functools.cache
def require(*, allow_unconfined: bool) -> None:
    """Once per process: see that programs are judged right and that none gets out; raises SandboxError if not.

    `allow_unconfined`: run them, under limits only, where nothing confines them.
    """
    if not supported() and not allow_unconfined:
        raise SandboxError(f"Nothing here confines model-written code, so it is not run. {REMEDY}")
    _self_test(confine=supported())
    if supported():
        _test_escapes()


def describe() -> tuple[str | None, str]:
    """(what confines programs here, None where nothing does; the remedy)."""
    try:
        require(allow_unconfined=False)
    except SandboxError as error:
        return None, str(error)
    return f"Landlock (ABI {landlock_abi()}), seccomp and rlimits", ""


def _self_test(*, confine: bool) -> None:
    tests = "assert candidate(2, 3) == 5"
    for body, passes in (
        ("return x + y", True),
        ("return x - y", False),
        ("pass", False),
        ("import os; os._exit(0)", False),
    ):
        job = {**vars(Task(f"def add(x, y): {body}", "add", tests)), "script": None}
        got = _run(job, SELF_TEST_LIMITS, confine=confine).verdict
        if (got == "passed") != passes:
            raise SandboxError(f"The code grader is broken: a function that does `{body}` is judged `{got}`.")


def _test_escapes() -> None:
    with tempfile.NamedTemporaryFile() as canary:
        answer = ESCAPES % (canary.name, canary.name, canary.name, os.getpid())
        got = run(Task(answer, "escapes", "assert candidate() == [], candidate()"), SELF_TEST_LIMITS).verdict
    if got != "passed":
        raise SandboxError(f"The sandbox does not hold: a program that tries to get out is judged `{got}`.")
