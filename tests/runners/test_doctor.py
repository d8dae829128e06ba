"""What `make doctor` says of machines that are not this one."""

import importlib.metadata
import sys

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
