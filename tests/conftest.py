"""Fixtures for all tests."""

from collections.abc import Callable

import pytest

from runners.cell import Cell
from runners.cli import compose_config


@pytest.fixture
def cell_of() -> Callable[..., Cell]:
    """Make the cell that these overrides ask for."""
    return lambda *overrides: Cell.from_config(compose_config(["engine.device=cpu", *overrides]))
