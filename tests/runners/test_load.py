"""What the sampler says about a machine that something else uses, and about a GPU as nvidia-smi tells of it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from runners.load import MachineSampler

SPIN = "while True: pass"


def test_a_busy_stranger_is_seen_and_our_own_server_is_not() -> None:
    server, stranger = (subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2))
    try:
        both_ours = MachineSampler(server.pid, "cpu")
        before = both_ours.sample()
        time.sleep(1)
        after = both_ours.sample()
    finally:
        for process in (server, stranger):
            process.kill()
            process.wait()
    assert before["others_cores"] is None, "nothing is known before the first interval"
    assert after["others_cores"] > 0.3, "the stranger's core is counted"
    assert after["gpu_clock_mhz"] is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1980, 61, 0x0000000000000000", (1980.0, 61.0, False)),
        ("1980, 61, 0x0000000000000004", (1980.0, 61.0, False)),  # the power cap: every loaded GPU is at it
        ("1200, 88, 0x0000000000000040", (1200.0, 88.0, True)),
        ("[N/A], 40, [N/A]", (None, 40.0, None)),
        ("no devices were found", (None, None, None)),
    ],
)
def test_what_nvidia_smi_says_is_read(
    line: str, expected: tuple[float | None, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\necho "{line}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    sample = MachineSampler(1, "cuda").sample()
    assert (sample["gpu_clock_mhz"], sample["gpu_temperature_c"], sample["gpu_throttled"]) == expected
    assert "--id=3" in (tmp_path / "arguments").read_text()
