"""Fixtures for all tests."""

import os
from collections.abc import Callable

import pytest
import torch

from runners.cell import Cell
from runners.cli import compose_config


@pytest.fixture
def cell_of() -> Callable[..., Cell]:
    """Make the cell that these overrides ask for."""
    return lambda *overrides: Cell.from_config(compose_config(["engine.device=cpu", *overrides]))


def pytest_configure() -> None:
    """One thread for each worker and what it starts: threads that wait for each other on shared cores lose most."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that start servers take longest, so they go first: two workers then end at about the same time."""
    serving = {item.path for item in items if item.get_closest_marker("server")}
    items.sort(key=lambda item: item.path not in serving)  # whole files: a module's fixtures are made once
