"""What else the machine did while a request was answered: other processes' load, clocks, temperature, throttling.

sampler = MachineSampler(server_pid, device="cuda")
sampler.sample()      # since the sample before
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from runners.provenance import nvidia_smi

# Bits of nvidia-smi's mask that mean heat or power trouble, not the ordinary power cap: hardware slowdown, software and
# hardware thermal slowdown, power brake.
THROTTLE_BITS = 0x8 | 0x20 | 0x40 | 0x80
GPU_FIELDS = "clocks.sm,temperature.gpu,clocks_throttle_reasons.active"


@dataclass
class MachineSampler:
    """Samples the machine between requests; `pid` is the server's main process, whose tree is not `others`."""

    pid: int
    device: str
    _last: tuple[float, float, float] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sample(self) -> dict[str, Any]:
        """Values since the last sample; null where the machine does not tell."""
        with self._lock:
            now = (time.monotonic(), busy_seconds(), own_seconds(self.pid))
            last, self._last = self._last, now
        sample = {
            "load1": os.getloadavg()[0],
            "others_cores": others_cores(last, now) if last else None,
            "cpu_mhz": cpu_mhz(),
            "cpu_temperature_c": cpu_temperature(),
            "gpu_clock_mhz": None,
            "gpu_temperature_c": None,
            "gpu_throttled": None,
        }
        return {**sample, **(sample_gpu() if self.device == "cuda" else {})}


def others_cores(last: tuple[float, float, float], now: tuple[float, float, float]) -> float:
    """Cores that processes other than ours kept busy between two readings."""
    wall, busy, own = (b - a for a, b in zip(last, now, strict=True))
    return round(max(0.0, busy - own) / wall, 3) if wall else 0.0


def busy_seconds() -> float:
    """CPU seconds that all processes of this machine have used."""
    times = psutil.cpu_times()
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user already
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - guest)


def own_seconds(pid: int) -> float:
    """CPU seconds that this process and the server's tree have used."""
    seconds = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(pid)
        for process in (psutil.Process(), server, *server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
    return seconds


def cpu_mhz() -> float | None:
    """Mean clock of the cores."""
    frequency = psutil.cpu_freq()
    return round(frequency.current, 1) if frequency else None


def cpu_temperature() -> float | None:
    """The hottest sensor of the processor, in degrees Celsius."""
    sensors = psutil.sensors_temperatures()
    readings = [
        entry.current for name in ("coretemp", "k10temp", "zenpower", "cpu_thermal") for entry in sensors.get(name, [])
    ]
    return max(readings, default=None)


def sample_gpu() -> dict[str, Any]:
    """Clock, temperature and throttling of the server's first GPU."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    rows = nvidia_smi(f"--query-gpu={GPU_FIELDS}", f"--id={first}")
    if len(rows) != 1 or len(rows[0]) != 3:
        return {}
    clock, temperature, reasons = map(number, rows[0])
    return {
        "gpu_clock_mhz": clock,
        "gpu_temperature_c": temperature,
        "gpu_throttled": None if reasons is None else bool(int(reasons) & THROTTLE_BITS),
    }


def number(text: str) -> float | None:
    """A field of nvidia-smi, which may say [N/A]."""
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None
