"""A tampered engine refuses to start, with the reason."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.adaptivespec.sglang_plugin.conftest import START_S, adaptive, command, environment, free_port

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
    # As an engine would that moved the function: one hook is not applied, and SGLang goes on.
    tamper = """
        import importlib.util, sys

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name != "sglang.srt.plugins.hook_registry":
                    return None
                sys.meta_path.remove(self)
                spec = importlib.util.find_spec(name)
                execute = spec.loader.exec_module
                def exec_module(module):
                    execute(module)
                    apply = module.HookRegistry._apply_target.__func__
                    def skipping(cls, target, hooks):
                        if not target.endswith("eagle_sample"):
                            apply(cls, target, hooks)
                    module.HookRegistry._apply_target = classmethod(skipping)
                spec.loader.exec_module = exec_module
                return spec

        sys.meta_path.insert(0, Finder())
    """
    log = refusal(tmp_path, models, tamper)
    assert "hooks of the AdaptiveSpec plugin are not in place" in log
    assert "eagle_sample" in log


@pytest.mark.parametrize(
    ("flags", "config", "reason"),
    [
        (("--speculative-num-steps", "3"), None, "--speculative-num-steps: the tree policy sets the shapes"),
        (("--cuda-graph-backend-prefill", "full"), None, "cuda_graph_config.prefill.backend='full'"),
        ((), {"tree": {"policy": "dcs", "dd": 1}}, "unknown dd"),
    ],
)
def test_what_does_not_fit_refuses_to_start(
    tmp_path: Path, models: tuple[Path, Path], flags: tuple[str, ...], config: object, reason: str
) -> None:
    assert reason in refusal(tmp_path, models, "", *flags, config=config)


def test_step_times_that_cannot_be_written_end_the_server_at_its_start(
    tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTIVESPEC_STEP_TIMES", str(tmp_path / "none" / "steps.jsonl"))
    assert "expected a file that can be written (No such file or directory)" in refusal(tmp_path, models, "")


def test_the_stock_engine_fits_and_each_difference_is_named() -> None:
    """In a process of its own: SGLang's imports warn, and want the CPU's environment."""
    script = """
        from adaptivespec.sglang_plugin import compat
        from sglang.srt.speculative import eagle_worker_v2 as engine

        assert compat.version_problem() is None
        compat.check_signatures()
        engine.EagleDraftWorker.draft = lambda self, batch, depth: None
        del engine.EAGLEWorkerV2.init_cuda_graphs
        engine.EAGLEWorkerV2.__mro__[1].init_cuda_graphs = lambda self, more: None
        try:
            compat.check_signatures()
        except compat.IncompatibleEngineError as error:
            print(error)
        try:
            compat.check_hooks({"sglang.srt.speculative.eagle_utils.eagle_sample": print})
        except compat.IncompatibleEngineError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        "EagleDraftWorker.draft has parameters (self batch depth), expected (self batch with_topology)" in done.stdout
    )
    assert "EAGLEWorkerV2.init_cuda_graphs has parameters (self more), expected (self)" in done.stdout
    assert "not in place: sglang.srt.speculative.eagle_utils.eagle_sample" in done.stdout
