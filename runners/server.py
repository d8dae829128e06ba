"""Starts the real SGLang server for a group of cells, proves that it is the one asked for, and takes it down without a trace.

with Server(ServerSpec.for_cell(ready, engine), log=Path("server.log")) as server:
    server.url, server.api_key
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import requests

from adaptivespec import sglang_cpu
from runners.errors import ServerError, UserError
from runners.load import MachineSampler
from runners.provenance import nvidia_smi

# Found again in the environment of every process that a server starts, also of those that changed session or parent.
MARK = "ADAPTIVESPEC_SERVER_ID"
SHAPE_FIELDS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
LONGER_DRAFT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
# What the engine only warns of, and what would be measured under a wrong name: it goes on without what was asked for.
FALLBACKS = ("speculative_adaptive disabled",)


@dataclass(frozen=True)
class ServerSpec:
    """What one server is started with; equal specs can share a server."""

    target: Path
    draft: Path | None
    algorithm: str | None
    shape: tuple[int, int, int] | None
    """For EAGLE3; our plugin takes its shapes from `options`."""
    options: Mapping[str, Any] | None
    """Server-wide options of the plugin."""
    engine: Mapping[str, Any]
    seed: int
    lift_draft_limit: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the server."""

    def command(self, port: int, api_key: str) -> list[str]:
        """Return the command line."""
        engine = self.engine
        flags: dict[str, Any] = {
            "model-path": self.target, "host": "127.0.0.1", "port": port, "api-key": api_key, "device": engine["device"],
            "dtype": engine["dtype"], "attention-backend": engine["attention_backend"], "tp-size": engine["tp_size"],
            "dp-size": engine["dp_size"], "random-seed": self.seed, "mem-fraction-static": engine["mem_fraction_static"],
            "context-length": engine["context_length"], "max-running-requests": engine["concurrency"], "page-size": 1,
            "disable-cuda-graph": not engine["cuda_graph"], "disable-overlap-schedule": not engine["overlap_schedule"],
            "disable-radix-cache": not engine["radix_cache"], "skip-server-warmup": True,
        }  # fmt: skip
        if engine["device"] == "cpu":
            # SGLang sizes the KV cache from all free memory; a laptop has other uses for it.
            flags["max-total-tokens"] = 16384 * engine["concurrency"]
        if self.algorithm:
            flags |= {"speculative-algorithm": self.algorithm, "speculative-draft-model-path": self.draft}
        if self.shape:
            flags |= dict(zip(SHAPE_FIELDS, self.shape, strict=True))
        flags |= engine["server_args"]
        return [sys.executable, "-m", "sglang.launch_server", *to_arguments(flags)]

    def environment(self) -> dict[str, str]:
        """Return the variables that the server needs beyond ours."""
        variables = dict(self.variables)
        if self.engine["device"] == "cpu" and sglang_cpu.needed():
            variables |= sglang_cpu.environment()
        if self.engine["threads"]:
            variables["OMP_NUM_THREADS"] = str(self.engine["threads"])
        if self.lift_draft_limit:
            variables[LONGER_DRAFT] = "1"
        if self.options is not None:
            variables["ADAPTIVESPEC_CONFIG"] = json.dumps(self.options)
        return variables


def to_arguments(flags: Mapping[str, Any]) -> list[str]:
    """`{"a_b": 1, "c": True, "d": None, "e": False, "f": [2, 3]}` -> `--a-b 1 --c --f 2 3`."""
    arguments: list[str] = []
    for name, value in ((name.replace("_", "-"), value) for name, value in flags.items()):
        if value is True:
            arguments.append(f"--{name}")
        elif isinstance(value, list | tuple):
            arguments += [f"--{name}", *map(str, value)]
        elif value is not None and value is not False:
            arguments += [f"--{name}", str(value)]
    return arguments


@dataclass
class Server:
    """One running server; a context manager. Its whole process tree ends with the block, however that ends."""

    spec: ServerSpec
    log: Path
    timeouts: Mapping[str, float]
    port: int | None = None
    progress: Callable[[str], None] = lambda line: None
    id: str = field(default_factory=lambda: f"s-{secrets.token_hex(4)}")
    api_key: str = field(default_factory=lambda: secrets.token_hex(24))
    started_at: str = ""
    ready_s: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)
    _log_start: int = 0

    def __enter__(self) -> Server:
        """Start, wait until it answers a generation, and check that it is what was asked for."""
        begin = time.monotonic()
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        port = self.port
        if port is None:
            port = free_port()
        elif not port_is_free(port):
            raise UserError(
                f"engine.port={port} is in use: stop what listens there, or leave engine.port=null to take a free one"
            )
        self.port = port
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = self.spec.command(port, self.api_key)
        environment = {**os.environ, **self.spec.environment(), MARK: self.id}
        with self.log.open("ab") as stream:
            stream.write(f"\n== {self.id} {self.started_at}: {self.shown_command()}\n".encode())
            stream.flush()
            self._log_start = stream.tell()
            self._process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        try:
            self._wait_until_ready(begin + self.timeouts["start_s"])
            self.info = self.get("/server_info")
            if wrong := [*mismatches(self.spec, self.info), *self.fallbacks()]:
                raise ServerError(f"the server is not what was asked for, so nothing is measured: {'; '.join(wrong)}")
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - begin
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Take everything down. A connection that broke because the server ended is told as that, with its log's end."""
        ended = self.ended() if isinstance(error, requests.ConnectionError) else None
        self.stop()
        if ended:
            raise self.failure(f"{ended} while it answered") from error

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def sampler(self) -> MachineSampler:
        """Samples the machine from the first request on."""
        return MachineSampler(self._process.pid, self.spec.engine["device"])

    @property
    def alive(self) -> bool:
        """Whether the main process still runs."""
        return self._process.poll() is None

    def ended(self) -> str | None:
        """How the main process ended, once it has had a moment to; None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=5)
            if code == -signal.SIGKILL:
                return "was ended by SIGKILL (what the kernel does to a process that runs out of memory)"
            return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return None

    def shown_command(self) -> str:
        """The command and its variables as a person would type them, without the key."""
        variables = [f"{name}={value}" for name, value in self.spec.environment().items()]
        return " ".join([*variables, *self.spec.command(self.port or 0, "KEY")])

    def get(self, path: str) -> dict[str, Any]:
        """GET a JSON document from the server."""
        answer = requests.get(self.url + path, headers={"Authorization": f"Bearer {self.api_key}"}, timeout=60)
        answer.raise_for_status()
        document: dict[str, Any] = answer.json()
        return document

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """POST JSON and return the answer's. Raises requests' exceptions."""
        answer = requests.post(
            self.url + path, json=body, headers={"Authorization": f"Bearer {self.api_key}"}, timeout=timeout_s
        )
        if answer.status_code >= 400:
            raise requests.HTTPError(f"{answer.status_code}: {answer.text[:500]}", response=answer)
        document: dict[str, Any] = answer.json()
        return document

    def flush_cache(self) -> None:
        """Forget all prefixes, so that the next prompts are cold."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        # The engine flushes once it is idle, and waits for that as long as `timeout` says.
        requests.post(self.url + "/flush_cache", params={"timeout": 30}, headers=headers, timeout=60).raise_for_status()

    def describe(self) -> dict[str, Any]:
        """What a record keeps of this server start."""
        return {
            "id": self.id,
            "started_at": self.started_at,
            "ready_s": round(self.ready_s, 2),
            "command": self.shown_command(),
            # As the engine resolved it, also where `default` left it to the engine.
            "attention_backend": self.info.get("attention_backend"),
        }

    def _wait_until_ready(self, deadline: float) -> None:
        body = {"input_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
        while time.monotonic() < deadline:
            if not self.alive:
                raise self.failure(f"{self.ended()} before it was ready")
            self.progress(last_line(self.log))
            try:
                self.get("/model_info")
                self.post("/generate", body, timeout_s=max(1.0, deadline - time.monotonic()))
                return
            except (requests.ConnectionError, requests.HTTPError):
                time.sleep(0.3)
            except requests.Timeout:
                break
        raise self.failure(f"did not answer a generation within timeouts.start_s={self.timeouts['start_s']}")

    def failure(self, what: str) -> ServerError:
        """What the server did, the cause as far as its log tells, and the log's end."""
        return ServerError(f"the server {what}: {self.cause()}\n{self.tail()}")

    def cause(self) -> str:
        """The line of the log that says most about a failure."""
        telling = [
            line.strip()
            for line in self.lines()
            if any(word in line for word in ("Error:", "ERROR", "Killed", "out of memory", "refuse"))
        ]
        return telling[-1][-400:] if telling else "no error in its log"

    def tail(self, lines: int = 50) -> str:
        """The log's last lines."""
        return "\n".join(["--- last lines of the server's log ---", *self.lines()[-lines:]])

    def lines(self) -> list[str]:
        """What this start has logged; the file may hold earlier ones."""
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            return stream.read().decode(errors="replace").splitlines()

    def fallbacks(self) -> list[str]:
        """Log lines in which the engine says that it goes on without what was asked for."""
        return [line.strip() for line in self.lines() if any(words in line for words in FALLBACKS)]

    def stop(self) -> None:
        """End all processes of this server, then wait until the port and the accelerator's memory are free."""
        deadline = time.monotonic() + self.timeouts["stop_s"]
        for number in (signal.SIGTERM, signal.SIGKILL):
            family = marked_processes(self.id)
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            if not psutil.wait_procs(family, timeout=5)[1] and not marked_processes(self.id):
                break
        while time.monotonic() < deadline and not (
            port_is_free(self.port or 0) and accelerator_is_free(self.spec.engine["device"])
        ):
            time.sleep(0.2)


def mismatches(spec: ServerSpec, info: Mapping[str, Any]) -> list[str]:
    """Compare a running server's `/server_info` with what was asked; one sentence per difference."""
    engine = spec.engine
    asked: dict[str, Any] = {
        "version": importlib.metadata.version("sglang"),
        "model_path": str(spec.target),
        "dtype": engine["dtype"],
        "device": engine["device"],
        "tp_size": engine["tp_size"],
        "attention_backend": engine["attention_backend"],
        "disable_radix_cache": not engine["radix_cache"],
        "disable_cuda_graph": not engine["cuda_graph"],
        "speculative_algorithm": spec.algorithm,
    }
    if engine["attention_backend"] == "default":
        del asked["attention_backend"]
    if spec.algorithm != "ADAPTIVESPEC":  # our plugin never overlaps, and says so
        asked["disable_overlap_schedule"] = not engine["overlap_schedule"]
    if spec.shape:
        asked |= dict(zip(SHAPE_FIELDS, spec.shape, strict=True))
    wrong = [
        f"{name} is {info.get(name)!r}, asked for {value!r}" for name, value in asked.items() if info.get(name) != value
    ]
    if spec.options is not None:
        wrong += plugin_mismatches(spec.options, info)
    return wrong


def plugin_mismatches(options: Mapping[str, Any], info: Mapping[str, Any]) -> list[str]:
    """Compare what the plugin in the server says of itself with what it was started with."""
    told = (info.get("internal_states") or [{}])[0].get("adaptivespec")
    if told is None:
        return ["the server carries no ADAPTIVESPEC plugin"]
    asked = {"version": importlib.metadata.version("adaptivespec"), "options": options}
    return [
        f"the plugin's {name} is {told[name]!r}, asked for {value!r}"
        for name, value in asked.items()
        if told[name] != value
    ]


def die_with_parent() -> None:
    """In the child: be killed when our process dies, even by SIGKILL (SGLang's own children watch their parent the same way)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def marked_processes(server_id: str) -> list[psutil.Process]:
    """All processes that carry this server's mark, reparented or in another session as they may be."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK) == server_id
            ):
                found.append(process)
    return found


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether nothing listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def accelerator_is_free(device: str) -> bool:
    """Whether the driver has taken back the memory of ended processes."""
    if device != "cuda":
        return True
    rows = nvidia_smi("--query-compute-apps=pid")
    return all(psutil.pid_exists(int(pid)) for row in rows for pid in row if pid.isdigit())


def last_line(path: Path) -> str:
    """The last line of a growing file, without reading all of it."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 400))
        lines = stream.read().decode(errors="replace").splitlines()
    return lines[-1] if lines else ""
