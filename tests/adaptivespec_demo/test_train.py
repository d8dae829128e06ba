"""Training raises held-out acceptance; a killed run ends like one that was left alone; what it writes loads again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from adaptivespec.demo import train
from adaptivespec.demo.drafter import load_drafter, with_vocabulary
from adaptivespec.demo.sequences import Generation, TrainingDataError
from adaptivespec.demo.settings import Settings
from adaptivespec.demo.train import Run


def finish(run: Run) -> list[dict]:
    return list(run.rounds())


def test_training_raises_held_out_acceptance(settings: Settings) -> None:
    log = finish(Run(settings))
    before, after = log[0]["held_out"], log[-1]["held_out"]
    assert after["by_depth"][0] > before["by_depth"][0] + 0.05
    assert after["tau"][3] > before["tau"][3]
    assert log[-1]["unique_tokens"] > 0


def test_a_run_killed_in_the_middle_of_a_round_ends_like_one_left_alone(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Run(replace(settings, out=str(tmp_path / "whole")))
    finish(whole)
    killed = Run(settings)
    steps = iter(range(1000))
    step = Run._step

    def dying_step(self: Run, *arguments: object) -> object:
        if next(steps) == 12:
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Run, "_step", dying_step)
    with pytest.raises(KeyboardInterrupt):
        finish(killed)
    monkeypatch.setattr(Run, "_step", step)
    resumed = Run(settings)
    assert 0 < resumed.round < len(resumed.shards)
    finish(resumed)
    for name, value in whole.drafter.state_dict().items():
        assert torch.equal(value, resumed.drafter.state_dict()[name]), name


def test_the_command_exports_what_it_trained(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    out = Path(settings.out)
    flags = [
        "--draft-vocab",
        "64",
        "--depths",
        "2",
        "--shard-tokens",
        "800",
        "--tokens",
        "1500",
        "--held-out-every",
        "8",
    ]
    train.main(["--generations", settings.generations, "--target", settings.target, "--out", str(out), *flags])
    target = train.load_target(settings.target, torch.device("cpu"))
    exported = load_drafter(out / "drafter", target)
    state = torch.load(out / "checkpoint.pt", weights_only=True)["drafter"]
    for name, value in exported.state_dict().items():
        assert torch.equal(value, state[name].half().bfloat16().to(value.dtype)), name
    config, weights = (out / "drafter" / name for name in ("config.json", "model.safetensors"))
    assert not [key for key in json.loads(config.read_text(encoding="utf-8")) if key.startswith("_")]
    assert weights.stat().st_mode == config.stat().st_mode
    assert (out / "log.jsonl").read_text(encoding="utf-8") == "".join(capsys.readouterr().out)


def test_resuming_with_other_settings_is_refused(settings: Settings) -> None:
    finish(Run(replace(settings, tokens=400)))
    with pytest.raises(TrainingDataError, match=r"other settings \(lr\)"):
        Run(replace(settings, lr=1e-4))


def test_more_tokens_and_depths_continue_a_run(settings: Settings) -> None:
    first = finish(Run(replace(settings, tokens=400)))
    more = finish(Run(replace(settings, tokens=1200, depths=settings.depths + 1)))
    assert more[0]["round"] == first[-1]["round"] + 1
    assert len(more[0]["accepted"]) == len(first[-1]["accepted"]) + 1


def test_more_data_continues_a_run_but_other_data_does_not(settings: Settings, tmp_path: Path) -> None:
    """What a run has trained on must stay; what comes behind it may change, and its features are its own."""
    settings = replace(settings, held_out_limit=2)
    finish(Run(replace(settings, tokens=400)))
    lines = Path(settings.generations).read_text(encoding="utf-8").splitlines(keepends=True)
    longer, other = tmp_path / "longer.jsonl", tmp_path / "other.jsonl"
    half = len(lines) // 2
    longer.write_text("".join(lines[:half] + lines[:half:-1]), encoding="utf-8")
    other.write_text("".join(lines[::-1]), encoding="utf-8")
    run = Run(replace(settings, tokens=1200, generations=str(longer)))
    assert run.round > 0
    finish(run)
    with pytest.raises(TrainingDataError, match=r"other settings \(data\)"):
        Run(replace(settings, generations=str(other)))


def test_another_targets_features_are_never_trained_on(settings: Settings, tmp_path: Path) -> None:
    finish(Run(replace(settings, tokens=400)))
    other = tmp_path / "other"
    shutil.copytree(settings.target, other)
    Run(replace(settings, tokens=400, target=str(other)))  # the same checkpoint elsewhere
    model = LlamaForCausalLM.from_pretrained(other)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(1.1)
    model.save_pretrained(other)
    with pytest.raises(TrainingDataError, match=r"other settings \(target\)"):
        Run(replace(settings, target=str(other)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_vocabulary_keeps_what_the_head_knew(settings: Settings, dtype: torch.dtype) -> None:
    """Known tokens keep their rows and all else stays; new tokens start as the target's own rows."""
    run = Run(settings)
    old = run.drafter
    with torch.no_grad():
        old.lm_head.weight.add_(1.0)
    d2t = torch.arange(10, 90)
    run.target.to(dtype)  # as on CUDA
    new = with_vocabulary(old, run.target, d2t)
    known = dict(zip(old.d2t.tolist(), old.lm_head.weight.detach(), strict=True))
    for token, row in zip(d2t.tolist(), new.lm_head.weight.detach(), strict=True):
        assert torch.equal(row, known.get(token, run.target.lm_head.weight[token].float())), token
    assert torch.equal(new.fc.weight, old.fc.weight)
    assert 0 < sum(token in known for token in d2t.tolist()) < len(d2t)


def test_a_rare_kind_has_its_tokens_in_the_vocabulary(settings: Settings) -> None:
    """One short answer of its own kind weighs as much as fifty of another."""
    target = train.load_target(settings.target, torch.device("cpu"))
    common = [Generation("word", (2,), tuple(range(10, 20)))] * 50
    rare = [Generation("code", (2,), (70, 71, 72))]
    assert {70, 71, 72} <= set(train.frequent_tokens(common + rare, target, 8).tolist())
