"""Hostile programs are judged wrong, do no harm, and end; without confinement nothing runs."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluators import sandbox

LIMIT = {"cpu_s": 1, "wall_s": 6, "memory_mib": 2048, "output_mib": 16}


def verdict(body: str, limits: dict[str, int | float] = LIMIT) -> str:
    """Of a function `act` with this body, which is right if it returns True."""
    source = "def act():\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    return sandbox.run(sandbox.Task(source, "act", "assert candidate() is True"), limits).verdict


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim.txt"
    path.write_text("precious")
    path.chmod(0o666)
    tmp_path.chmod(0o777)
    return path


@pytest.fixture
def uncached() -> Iterator[None]:
    sandbox.require.cache_clear()
    yield
    sandbox.require.cache_clear()


def test_a_right_function_passes_and_a_wrong_one_does_not() -> None:
    assert verdict("return True") == "passed"
    assert verdict("return False") == "wrong result"


@pytest.mark.parametrize(
    "harm",
    [
        'open({path!r}, "w").close()',
        'open({path!r}, "a").write("x")',
        'open({path!r}, "r+").truncate()',
        "os.truncate({path!r}, 0)",
        "os.remove({path!r})",
        'os.rename({path!r}, {path!r} + ".moved")',
        'os.link({path!r}, {path!r} + ".link")',
        'os.symlink({path!r}, {path!r} + ".link")',
        'os.mkdir({path!r} + ".folder")',
        'os.mkfifo({path!r} + ".pipe")',
        "os.chmod({path!r}, 0)",
        "os.utime({path!r}, (0, 0))",
        'os.setxattr({path!r}, "user.x", b"1")',
        "open({path!r}).read()",
    ],
)
def test_files_outside_are_out_of_reach(victim: Path, harm: str) -> None:
    before = victim.stat()
    attempt = f"import os\n{harm.format(path=str(victim))}\nreturn True"
    assert verdict(attempt) == "raised PermissionError"
    assert victim.read_text() == "precious"
    after = victim.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert list(victim.parent.iterdir()) == [victim]


@pytest.mark.parametrize(
    "attempt",
    [
        "os.fork()",
        "while True: os.fork()",
        'os.execv(sys.executable, [sys.executable, "-c", ""])',
        'os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})',
        'subprocess.run(["true"])',
        "os.kill(OURS, 0)",
        "os.kill(os.getpid(), 9)",
        "os.sched_setaffinity(OURS, [0])",
        "os.setpriority(os.PRIO_PROCESS, OURS, 19)",
        "ctypes.CDLL(None, use_errno=True).unshare(0x10000000) == 0 or raise_errno()",
    ],
)
def test_no_new_processes_and_no_hold_on_others(attempt: str) -> None:
    imports = f"import ctypes, os, subprocess, sys\nOURS = {os.getpid()}\n"
    raiser = 'def raise_errno(): raise PermissionError(ctypes.get_errno(), "refused")\n'
    assert verdict(f"{imports}{raiser}{attempt}\nreturn True") == "raised PermissionError"


@pytest.mark.parametrize("kind", ["AF_INET, socket.SOCK_STREAM", "AF_INET, socket.SOCK_DGRAM", "AF_UNIX"])
def test_no_network(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        attempt = f"import socket\nsocket.socket(socket.{kind}).connect({server.getsockname()!r})\nreturn True"
        assert verdict(attempt) == "raised PermissionError"
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        ("data = []\nwhile True: data.append(bytearray(1 << 26))", {"raised MemoryError", "timeout"}),
        ("import mmap\nmmap.mmap(-1, 1 << 32)\nreturn True", {"raised OSError"}),
        ("while True: pass", {"timeout"}),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", {"timeout"}),
        ("return 10 ** (10 ** 9) % 7 > 0", {"timeout"}),
        ("import os\nos._exit(0)", {"ended with exit code 0 before its tests did"}),
        ("import sys\nsys.exit(0)", {"raised SystemExit"}),
        ("raise KeyboardInterrupt", {"raised KeyboardInterrupt"}),
        ("return input() is not None", {"raised EOFError"}),
        ("import sys\nreturn sys.stdin.buffer.read(1) == b'x'", {"wrong result"}),
        ("print('x' * 10 ** 9)\nreturn True", {"raised OSError", "raised MemoryError", "timeout"}),
        ("for _ in range(1000): print('x' * 10 ** 6)\nreturn True", {"raised OSError"}),
        ("import ctypes\nctypes.string_at(0)", {"ended with exit code -11 before its tests did"}),
        ("raise AssertionError", {"wrong result"}),
    ],
)
def test_runaway_programs_end_within_their_limits(attempt: str, expected: set[str]) -> None:
    assert verdict(attempt) in expected


def test_a_program_sees_none_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    assert verdict("import os\nreturn 'SECRET_TOKEN' not in os.environ") == "passed"


def test_a_slow_right_program_passes() -> None:
    assert verdict("import time\ntime.sleep(0.3)\nreturn True") == "passed"


def test_a_program_that_lacks_a_free_core_is_waited_for() -> None:
    """It wants to run and is within its CPU limit: that the clock is ahead of it is the machine's doing."""
    busy = "import time\nstart = time.process_time()\nwhile time.process_time() < start + 1: pass\nreturn True"
    assert verdict(busy, {**LIMIT, "cpu_s": 5, "wall_s": 0.4}) == "passed"
    assert verdict("import time\ntime.sleep(1000)", {**LIMIT, "wall_s": 0.4}) == "timeout"


def test_an_object_that_equals_everything_is_not_the_answer() -> None:
    source = "class Any(int):\n    def __eq__(self, other):\n        return True\ndef act():\n    return [Any(0)]\n"
    assert sandbox.run(sandbox.Task(source, "act", "assert candidate() == [5]"), LIMIT).verdict == "wrong result"


@pytest.mark.usefixtures("uncached")
def test_nothing_runs_where_nothing_confines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "supported", lambda: False)
    with pytest.raises(sandbox.SandboxError, match="Landlock"):
        sandbox.require(allow_unconfined=False)
    kind, remedy = sandbox.describe()
    assert kind is None
    assert "--allow-unconfined" in remedy
    sandbox.require(allow_unconfined=True)


@pytest.mark.usefixtures("uncached")
@pytest.mark.parametrize("always", ["passed", "wrong result"])
def test_a_dead_grader_is_refused(monkeypatch: pytest.MonkeyPatch, always: str) -> None:
    monkeypatch.setattr(sandbox, "_run", lambda *_, **__: sandbox.Outcome(always))
    with pytest.raises(sandbox.SandboxError, match="broken"):
        sandbox.require(allow_unconfined=False)


@pytest.mark.usefixtures("uncached")
def test_a_sandbox_with_a_hole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sandbox._run
    monkeypatch.setattr(sandbox, "_run", lambda job, limits, *, confine: run(job, limits, confine=False))
    monkeypatch.setattr(sandbox, "ESCAPES", "def escapes():\n    return [%r, %r, %r, %d]\n")
    with pytest.raises(sandbox.SandboxError, match="does not hold"):
        sandbox.require(allow_unconfined=False)


def test_python_itself_is_readable() -> None:
    assert verdict(f"import json, sqlite3\nreturn {sys.version_info.major} == 3") == "passed"
