"""What `make doctor` says of machines that are not this one."""

import importlib.metadata
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runners import doctor

CARD = {"gpu": ["NVIDIA A100-SXM4-80GB"], "driver": "470.1"}


@pytest.mark.parametrize("answers", [False, True])
def test_a_card_that_torch_cannot_use_is_not_ok(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "describe_gpus", lambda: CARD)
    monkeypatch.setattr("torch.cuda.is_available", lambda: answers)
    finding = doctor.gpu()
    assert finding.ok is answers
    assert "driver 470.1" in finding.found
    assert answers or "make setup DEVICE=cuda" in finding.remedy


def test_a_missing_engine_and_a_broken_torch_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert (doctor.sglang().ok, doctor.sglang().found) == (False, "not installed")
    assert not doctor.torch().ok
    assert "does not import" in doctor.torch().found


def test_each_disk_is_looked_at_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's models lie by HF_HOME, often on another disk than our cache; a folder not made yet counts as its parent."""
    free = {tmp_path / "ours": 6, tmp_path / "hub": 6}
    for place in free:
        place.mkdir()
    monkeypatch.setattr(doctor, "cache_dir", lambda: tmp_path / "ours" / "not" / "made")
    monkeypatch.setattr(doctor, "HF_HUB_CACHE", str(tmp_path / "hub" / "not-made"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: SimpleNamespace(free=free[place] * 2**30))
    assert (doctor.disk().ok, doctor.hub_disk().ok) == (True, False)
    assert "HF_HOME" in doctor.hub_disk().remedy
    assert not doctor.hub_disk().required
    free[tmp_path / "ours"], free[tmp_path / "hub"] = 1, 40
    assert (doctor.disk().ok, doctor.hub_disk().ok) == (False, True)
    assert "ADAPTIVESPEC_CACHE" in doctor.disk().remedy
