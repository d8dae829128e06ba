"""The built wheel carries everything: configs, CSVs, the demo's weights; every config composes from it, from anywhere."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMPOSE = """
from pathlib import Path
import conf
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
assert str(Path(conf.__file__)).startswith({place!r}), conf.__file__
folder = Path(conf.__file__).parent
with initialize_config_module("conf", version_base="1.3"):
    for group in ("method", "model", "benchmark", "launcher"):
        for path in sorted((folder / group).glob("*.yaml")):
            OmegaConf.to_container(compose("config", [f"{{group}}={{path.stem}}"]), resolve=True)
            print(group, path.stem)
    for group in ("arm", "extra", "sweep"):
        for path in sorted((folder / group).glob("*.yaml")):
            compose("config", [f"+{{group}}={{path.stem}}"], return_hydra_config=True)
            print(group, path.stem)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "-C", str(ROOT), "worktree", "prune"], check=False, capture_output=True)
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)], check=True, capture_output=True
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True, capture_output=True
    )
    return folder / "site"


@pytest.mark.parametrize(
    "name",
    [
        "adaptivespec/demo/problems.jsonl",
        "adaptivespec/demo/problems_dev.jsonl",
        "adaptivespec/demo/drafter/model.safetensors",
        "adaptivespec/sglang_cpu/path/sgl_kernel/__init__.py",
        "analysis/paper/table1.csv",
        "analysis/templates/report.css",
        "analysis/templates/report.html",
        "analysis/templates/report.js",
        "conf/sweep/table1.yaml",
        "conf/method/combined.yaml",
    ],
)
def test_the_wheel_carries_its_data(installed: Path, name: str) -> None:
    assert (installed / name).is_file()


def test_every_config_composes_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = COMPOSE.format(place=str(installed))
    environment = {"PYTHONPATH": str(installed), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in (ROOT / "conf").glob("*/*.yaml")} - {"default"} <= set(done.stdout.split())


def test_the_entry_point_is_the_plugins(installed: Path) -> None:
    (metadata,) = installed.glob("adaptivespec-*.dist-info")
    assert "adaptivespec.sglang_plugin:register" in (metadata / "entry_points.txt").read_text()
