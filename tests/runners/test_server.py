import importlib.util
import json
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from runners import server as server_module
from runners.errors import ServerError, UserError
from runners.server import (
    Server,
    ServerSpec,
    marked_processes,
    mismatches,
    plugin_mismatches,
    port_is_free,
    to_arguments,
)

FAKE = Path(__file__).parent / "fake_engine.py"
TIMEOUTS = {"start_s": 20.0, "request_s": 2.0, "stop_s": 10.0}
ENGINE = {
    "device": "cpu", "dtype": "float32", "attention_backend": "intel_amx", "tp_size": 1, "dp_size": 1, "concurrency": 1,
    "mem_fraction_static": None, "context_length": None, "cuda_graph": False, "overlap_schedule": False, "radix_cache": False,
    "threads": 1, "server_args": {},
}  # fmt: skip


@dataclass(frozen=True)
class FakeSpec(ServerSpec):
    mode: str = "ok"
    told: str = "null"

    def command(self, port: int, api_key: str) -> list[str]:
        return [sys.executable, str(FAKE), self.mode, str(port)]

    def environment(self) -> dict[str, str]:
        return {"FAKE_INFO": self.told}


def info(**changes: Any) -> dict[str, Any]:
    """What a server that is all right tells."""
    return {
        "version": "0.5.23", "model_path": "/m", "dtype": "float32", "device": "cpu", "tp_size": 1, "attention_backend": "intel_amx",
        "disable_radix_cache": True, "disable_cuda_graph": True, "disable_overlap_schedule": True, "speculative_algorithm": None, **changes,
    }  # fmt: skip


def spec(mode: str = "ok", **told: Any) -> FakeSpec:
    return FakeSpec(Path("/m"), None, None, None, None, ENGINE, 0, mode=mode, told=json.dumps(info(**told)))


def start(tmp_path: Path, mode: str = "ok", port: int | None = None, **told: Any) -> Server:
    return Server(spec(mode, **told), tmp_path / "server.log", TIMEOUTS, port)


def test_no_process_outlives_the_block_not_even_reparented_ones(tmp_path: Path) -> None:
    with start(tmp_path, "orphans") as server:
        assert len(marked_processes(server.id)) == 3
    assert marked_processes(server.id) == []
    assert port_is_free(server.port or 0)


def test_an_exception_inside_the_block_takes_the_server_down(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start(tmp_path) as server:
        raise KeyboardInterrupt
    assert marked_processes(server.id) == []


def test_a_server_that_ends_while_loading_tells_the_cause_and_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"code 3.*index out of bounds") as caught, start(tmp_path, "exit"):
        pass
    assert "loading 59" in str(caught.value)
    assert "loading 9\n" not in str(caught.value)


def test_what_an_earlier_start_logged_is_not_this_ones_cause(tmp_path: Path) -> None:
    with pytest.raises(ServerError), start(tmp_path, "exit"):
        pass
    with start(tmp_path) as server:
        assert server.cause() == "no error in its log"


def test_r060_a_server_that_fell_back_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="nothing is measured: speculative_adaptive disabled: topk is 4"):
        start(tmp_path, "falls-back").__enter__()


def test_r060_the_engine_says_so_in_these_words() -> None:
    root = Path(str(importlib.util.find_spec("sglang").origin)).parent  # type: ignore[union-attr]
    source = (root / "srt" / "arg_groups" / "speculative_hook.py").read_text()
    assert all(words in source for words in server_module.FALLBACKS)


def test_r059_the_record_has_the_attention_backend_that_the_engine_chose(tmp_path: Path) -> None:
    left_to_it = replace(spec(attention_backend="fa3"), engine={**ENGINE, "attention_backend": "default"})
    with Server(left_to_it, tmp_path / "server.log", TIMEOUTS) as server:
        assert server.describe()["attention_backend"] == "fa3"


def test_healthy_but_hanging_is_caught_by_the_timeouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TIMEOUTS, "start_s", 2.0)
    with pytest.raises(ServerError, match="did not answer a generation"), start(tmp_path, "hang"):
        pass
    monkeypatch.setitem(TIMEOUTS, "start_s", 20.0)
    with start(tmp_path, "hang-later") as server, pytest.raises(requests.Timeout):
        server.post("/generate", {}, timeout_s=1)


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UserError, match=f"engine.port={port} is in use"), start(tmp_path, port=port):
            pass


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speculative_algorithm", "EAGLE3"),
        ("dtype", "bfloat16"),
        ("model_path", "/other"),
        ("version", "0.5.24"),
        ("disable_radix_cache", False),
    ],
)
def test_a_server_that_is_not_what_was_asked_for_is_not_measured(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(ServerError, match=f"nothing is measured: {field} is"), start(tmp_path, **{field: value}):
        pass


def test_a_shape_that_differs_is_named() -> None:
    asked = ServerSpec(Path("/m"), Path("/d"), "EAGLE3", (3, 1, 4), None, ENGINE, 0)
    told = info(
        speculative_algorithm="EAGLE3",
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=8,
    )
    assert mismatches(asked, told) == ["speculative_num_draft_tokens is 8, asked for 4"]


def test_adaptive_silently_off_or_other_options_are_named() -> None:
    options = {"tree": {"policy": "dcs", "d": 0.5}, "accept": {"rule": "strict"}}
    assert plugin_mismatches(options, {"internal_states": [{}]}) == ["the server carries no ADAPTIVESPEC plugin"]
    other = {"version": "0.1.0", "options": {**options, "accept": {"rule": "margin"}}}
    assert len(plugin_mismatches(options, {"internal_states": [{"adaptivespec": other}]})) == 1
    assert plugin_mismatches(options, {"internal_states": [{"adaptivespec": {**other, "options": options}}]}) == []


def test_the_next_start_waits_for_the_accelerators_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = iter([False, False, False, True])
    seen = []
    monkeypatch.setattr(server_module, "accelerator_is_free", lambda device: seen.append(device) or next(polls))
    with start(tmp_path):
        pass
    assert seen == ["cpu"] * 4


def test_flags() -> None:
    asked = {"a_b": 1, "c": True, "d": None, "e": False, "f": [2, 3]}
    assert to_arguments(asked) == ["--a-b", "1", "--c", "--f", "2", "3"]
    command = ServerSpec(
        Path("/m"), Path("/d"), "EAGLE3", (3, 1, 4), None, {**ENGINE, "server_args": {"schedule_policy": "lpm"}}, 7
    ).command(1, "k")
    assert command[command.index("--speculative-num-draft-tokens") + 1] == "4"
    assert command[command.index("--schedule-policy") + 1] == "lpm"
    assert "--disable-radix-cache" in command


def test_the_shown_command_keeps_the_key(tmp_path: Path) -> None:
    server = Server(ServerSpec(Path("/m"), None, None, None, None, ENGINE, 0), tmp_path / "log", TIMEOUTS)
    assert server.api_key not in server.shown_command()


def test_a_dead_parent_takes_its_server_along(tmp_path: Path) -> None:
    """SIGKILL of the parent leaves nothing behind."""
    import subprocess

    code = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import tests.runners.test_server as t\n"
        "with t.start(Path(sys.argv[2])) as server: print(server.id, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(FAKE.parents[2]), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        server_id = parent.stdout.readline().strip()
    assert marked_processes(server_id)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while marked_processes(server_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked_processes(server_id) == []
