"""A tampered engine refuses to start, with the reason."""

import subprocess
import textwrap
from pathlib import Path

import pytest
from conftest import START_S, adaptive, command, environment, free_port

from adaptivespec.sglang_plugin import compat

pytestmark = pytest.mark.server  # imports SGLang


def refusal(tmp_path: Path, models: tuple[Path, Path], tamper: str, *arguments: str, config: object = None) -> str:
    """Start a server whose every process runs `tamper` first; return its log. It must end by itself."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(tamper))
    env = environment(config)
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    ended = subprocess.run(
        command(models[0], free_port(), *adaptive(models[1]), *arguments),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert ended.returncode != 0
    assert "Uvicorn running" not in ended.stdout
    return ended.stdout


def test_another_version_refuses_to_start(tmp_path: Path, models: tuple[Path, Path]) -> None:
    tamper = """
        import importlib.metadata as metadata
        true_version = metadata.version
        metadata.version = lambda name: "0.5.24" if name == "sglang" else true_version(name)
    """
    log = refusal(tmp_path, models, tamper)
    assert "SGLang 0.5.24 is installed; this plugin is written for sglang" in log


def test_hooks_that_are_not_applied_refuse_to_start(tmp_path: Path, models: tuple[Path, Path]) -> None:
    tamper = """
        import os, sys
        # Keep SGLang from applying one hook, as an engine that moved the function would.
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name != "sglang.srt.plugins.hook_registry":
                    return None
                sys.meta_path.remove(self)
                from sglang.srt.plugins.hook_registry import HookRegistry
                apply = HookRegistry._apply_target.__func__
                def skipping(cls, target, hooks):
                    if not target.endswith("eagle_sample"):
                        apply(cls, target, hooks)
                HookRegistry._apply_target = classmethod(skipping)
                return sys.modules[name].__spec__
        sys.meta_path.insert(0, Finder())
    """
    log = refusal(tmp_path, models, tamper)
    assert "hooks of the AdaptiveSpec plugin are not in place" in log
    assert "eagle_sample" in log


@pytest.mark.parametrize(
    ("flags", "config", "reason"),
    [
        (("--speculative-num-steps", "3"), None, "--speculative-num-steps: the tree policy sets the shapes"),
        ((), {"tree": {"policy": "dcs", "dd": 1}}, "unknown dd"),
    ],
)
def test_what_does_not_fit_refuses_to_start(
    tmp_path: Path, models: tuple[Path, Path], flags: tuple[str, ...], config: object, reason: str
) -> None:
    assert reason in refusal(tmp_path, models, "", *flags, config=config)


def test_the_stock_engine_fits() -> None:
    assert compat.version_problem() is None
    compat.check_signatures()


def test_a_changed_signature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.speculative import eagle_worker_v2

    monkeypatch.setattr(eagle_worker_v2.EagleDraftWorker, "draft", lambda self, batch, depth: None)
    monkeypatch.delattr(eagle_worker_v2.EAGLEWorkerV2, "init_cuda_graphs")
    with pytest.raises(compat.IncompatibleEngineError) as caught:
        compat.check_signatures()
    assert "EagleDraftWorker.draft has parameters (self batch depth)" in str(caught.value)


def test_a_removed_hook_is_named() -> None:
    def hook(original: object) -> None: ...

    with pytest.raises(compat.IncompatibleEngineError, match="eagle_sample"):
        compat.check_hooks({"sglang.srt.speculative.eagle_utils.eagle_sample": hook})
