"""Real SGLang servers on the CPU with a tiny model: four starts serve all tests here."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from adaptivespec import sglang_cpu

START_S = 300
FLAGS = {
    "device": "cpu",
    "dtype": "float32",
    "attention-backend": "intel_amx",
    "max-total-tokens": "4096",
    "mem-fraction-static": "0.4",
    "max-running-requests": "8",
    # Prompts of more than 16 tokens are prefilled in chunks.
    "chunked-prefill-size": "16",
    "random-seed": "0",
    "log-level": "warning",
}
SWITCHES = (
    *("--disable-cuda-graph", "--disable-overlap-schedule", "--skip-server-warmup", "--enable-metrics"),
    "--sleep-on-idle",  # else each idle server keeps a core busy, and four are up at once
)


@dataclass(frozen=True)
class Client:
    """Talks to one server."""

    url: str

    def generate(self, prompt: list[int], tokens: int = 64, options: object = None, **sampling: Any) -> dict[str, Any]:
        """One greedy completion by token ids; `options` are the plugin's."""
        response = self.post("/generate", body(prompt, tokens, options, **sampling))
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def post(self, path: str, content: object, **kwargs: Any) -> requests.Response:
        """One request, whatever comes of it."""
        return requests.post(self.url + path, json=content, timeout=300, **kwargs)

    def plugin_info(self) -> dict[str, Any] | None:
        """What /server_info tells of the plugin."""
        info = requests.get(self.url + "/server_info", timeout=60).json()
        told: dict[str, Any] | None = info["internal_states"][0].get("adaptivespec")
        return told


def body(prompt: list[int], tokens: int = 64, options: object = None, **sampling: Any) -> dict[str, Any]:
    """A /generate body."""
    params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **sampling}
    if options is not None:
        params["custom_params"] = {"adaptivespec": options}
    return {"input_ids": prompt, "sampling_params": params}


def command(model: Path, port: int, *arguments: str) -> list[str]:
    """The server's command line."""
    flags = [part for name, value in FLAGS.items() for part in (f"--{name}", value)]
    return [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)),
        *(*flags, *SWITCHES, *arguments),
    ]


def environment(config: object = None, **extra: str) -> dict[str, str]:
    """The server's environment; this checkout's code goes first."""
    env = {name: value for name, value in os.environ.items() if name != "ADAPTIVESPEC_CONFIG"}
    root = str(Path(__file__).parents[3])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    if sglang_cpu.needed():
        env.update(sglang_cpu.environment(env))
    if config is not None:
        env["ADAPTIVESPEC_CONFIG"] = json.dumps(config)
    return {**env, **extra}


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(log: Path, model: Path, *arguments: str, config: object = None, **env: str) -> Iterator[Client]:
    """A server for the length of the block."""
    port = free_port()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command(model, port, *arguments),
            env=environment(config, **env),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    client = Client(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + START_S
        while not _answers(client):
            assert process.poll() is None, f"the server ended:\n{log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"no answer in {START_S} s:\n{log.read_text()[-4000:]}"
            time.sleep(0.5)
        yield client
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(client: Client) -> bool:
    try:
        return requests.get(client.url + "/health", timeout=10).status_code == 200
    except requests.RequestException:
        return False


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(target, drafter)."""
    from tests.adaptivespec.sglang_plugin import tiny_model

    return tiny_model.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def adaptive(drafter: Path) -> tuple[str, ...]:
    """The flags of our algorithm."""
    return ("--speculative-algorithm", "ADAPTIVESPEC", "--speculative-draft-model-path", str(drafter))


@pytest.fixture(scope="session")
def vanilla(models: tuple[Path, Path], logs: Path) -> Iterator[Client]:
    """No speculation: the reference for token identity."""
    with serving(logs / "vanilla.log", models[0]) as client:
        yield client


@pytest.fixture(scope="session")
def cycle(models: tuple[Path, Path], logs: Path) -> Iterator[Client]:
    """Every reachable shape in turn, margin by default; requests are retracted again and again."""
    config = {"tree": {"policy": "cycle"}, "accept": {"rule": "margin", "kappa": 0.3}}
    with serving(logs / "cycle.log", models[0], *adaptive(models[1]), config=config) as client:
        yield client


@pytest.fixture(scope="session")
def chain(models: tuple[Path, Path], logs: Path) -> Iterator[Client]:
    """The static chain (7,1,8), strict by default, streaming increments."""
    config = {"tree": {"policy": "static", "shape": [7, 1, 8]}, "accept": {"rule": "strict"}}
    flags = (*adaptive(models[1]), "--incremental-streaming-output")
    env = {"ADAPTIVESPEC_STEP_TIMES": str(logs / "chain.steps.jsonl")}
    with serving(logs / "chain.log", models[0], *flags, config=config, **env) as client:
        yield client


@pytest.fixture(scope="session")
def dcs(models: tuple[Path, Path], logs: Path) -> Iterator[Client]:
    """The paper's combined method, and a scheduler that retracts running requests every few steps."""
    config = {"tree": {"policy": "dcs", "d": 0.5}, "accept": {"rule": "margin", "kappa": 0.3}}
    env = {"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "7"}
    with serving(logs / "dcs.log", models[0], *adaptive(models[1]), config=config, **env) as client:
        yield client
