"""A swap every step, for 20,000 steps, leaks nothing."""

import psutil
import pytest

from tests.adaptivespec.sglang_plugin.conftest import Client

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(3600)]

WARM_UP, STEPS, LIMIT_MB = 4000, 20_000, 10.0


def scheduler_of(client: Client) -> psutil.Process:
    """The scheduler process of this server."""
    port = int(client.url.rsplit(":", 1)[1])
    for process in psutil.Process().children(recursive=True):
        if "scheduler" in " ".join(process.cmdline()) and f"--port {port}" in " ".join(process.parent().cmdline()):
            return process
    raise AssertionError(f"no scheduler process below the server on port {port}")


def steps(client: Client, count: int) -> int:
    """Run at least `count` verify steps, one request after another."""
    done = 0
    while done < count:
        done += client.generate([10, 20, 30], 1000, {"rule": "strict"})["meta_info"]["spec_verify_ct"]
    return done


def test_resident_memory_stays(cycle: Client) -> None:
    scheduler = scheduler_of(cycle)
    steps(cycle, WARM_UP)
    before = scheduler.memory_info().rss
    done = steps(cycle, STEPS)
    grown_mb = (scheduler.memory_info().rss - before) / 1e6
    print(f"{done} steps, a swap at each: resident memory grew by {grown_mb:.2f} MB")
    assert grown_mb < LIMIT_MB
