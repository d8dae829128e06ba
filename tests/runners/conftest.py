"""A cell resolved without a model: its checkpoints are folders with a config, its tokenizer is a stand-in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.cell import Cell
from runners.resolve import Ready, Resolver


class Tokenizer:
    """Makes every prompt `n_tokens` long."""

    def __init__(self, n_tokens: int, chat_template: str) -> None:
        self.n_tokens, self.chat_template = n_tokens, chat_template

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return f"<user>{messages[0]['content']}"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(range(self.n_tokens))}


def write_checkpoint(folder: Path, weights: bytes = b"weights", **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.fixture
def resolve(cell_of: Callable[..., Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ready]:
    """Resolve the HumanEval cell that these overrides ask for, on the checkpoints in `target` and `draft`."""
    write_checkpoint(tmp_path / "target", max_position_embeddings=8192)
    write_checkpoint(tmp_path / "draft", max_position_embeddings=8192)

    def make(*overrides: str, n_tokens: int = 3, chat_template: str = "x") -> Ready:
        monkeypatch.setattr("runners.resolve.load_tokenizer", lambda folder: Tokenizer(n_tokens, chat_template))
        places = [f"model.{name}.path={tmp_path / name}" for name in ("target", "draft")]
        return Resolver().resolve(cell_of("benchmark=humaneval", "limit=1", *places, *overrides))

    return make
