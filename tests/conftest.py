"""Fixtures for all tests."""

from collections.abc import Callable
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from runners.cell import Cell
from runners.cli import plain_config, resolve_engine


def config_of(*overrides: str) -> dict[str, Any]:
    with initialize_config_module("conf", version_base="1.3"):
        config = plain_config(compose("config", list(overrides)))
    config["engine"] = resolve_engine(config["engine"])
    return config


@pytest.fixture
def cell_of() -> Callable[..., Cell]:
    """Make the cell that these overrides ask for."""
    return lambda *overrides: Cell.from_config(config_of("engine.device=cpu", *overrides))
