import os
from pathlib import Path

import pytest

from runners.cluster import one_accelerator
from runners.errors import UserError


def test_no_two_groups_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with one_accelerator(tmp_path, 2):
        first = os.environ["CUDA_VISIBLE_DEVICES"]
        with one_accelerator(tmp_path, 2):
            assert os.environ["CUDA_VISIBLE_DEVICES"] != first
            with pytest.raises(UserError, match=r"launcher\.gpus=2"), one_accelerator(tmp_path, 2):
                pass
    with one_accelerator(tmp_path, 2):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == first


def test_without_gpus_nothing_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with one_accelerator(tmp_path, 0):
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
