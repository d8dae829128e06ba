"""What makes two cells one, and what is refused before anything is launched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.checkpoint import Checkpoint
from runners.errors import UserError
from runners.group import server_spec
from runners.resolve import Ready, effective_config
from runners.server import LONGER_DRAFT
from tests.runners.conftest import write_checkpoint

Resolve = Callable[..., Ready]
CAP = ("benchmark.protocols.default.max_new_tokens=2048", "model.max_new_tokens=null")


@pytest.mark.parametrize("change", [{"weights": b"others"}, {"rope_theta": 500000.0}])
def test_r119_a_draft_changed_in_its_folder_is_another_cell(
    resolve: Resolve, tmp_path: Path, change: dict[str, Any]
) -> None:
    before = resolve("method=eagle3").id
    assert resolve("method=eagle3").id == before
    write_checkpoint(tmp_path / "draft", **{"max_position_embeddings": 8192, **change})
    assert resolve("method=eagle3").id != before
    assert resolve("method=vanilla").id == resolve("method=vanilla").id


@pytest.mark.parametrize(
    ("overrides", "more"),
    [
        (["benchmark.protocols.default.chat=false"], {}),
        ([], {"chat_template": "another"}),
        (["benchmark.protocols.default.max_new_tokens=99"], {}),
    ],
    ids=["R101 no chat template", "R101 another chat template", "R105 another cap"],
)
def test_another_prompt_or_cap_is_another_cell(resolve: Resolve, overrides: list[str], more: dict[str, str]) -> None:
    assert resolve("method=eagle3", *overrides, **more).id != resolve("method=eagle3").id


@pytest.mark.parametrize("cuda_graph", ["true", "false"])
def test_r016_r017_a_draft_that_ends_below_prompt_and_cap_is_refused_before_launch(
    resolve: Resolve, tmp_path: Path, cuda_graph: str
) -> None:
    write_checkpoint(tmp_path / "draft", max_position_embeddings=2048)
    asked = ("method=eagle3", *CAP, f"engine.cuda_graph={cuda_graph}")
    with pytest.raises(UserError, match=r"takes 2048 positions.* need 2648: .*model\.draft_max_positions=2048"):
        resolve(*asked, n_tokens=600)
    lifted = resolve(*asked, "model.draft_max_positions=2048", n_tokens=600)
    assert server_spec([lifted]).environment()[LONGER_DRAFT] == "1"


def test_a_target_that_ends_below_prompt_and_cap_is_refused(resolve: Resolve, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "target", max_position_embeddings=2048)
    with pytest.raises(UserError, match=r"takes 2048 positions.* need 2648"):
        resolve("method=vanilla", *CAP, n_tokens=600)


@pytest.mark.parametrize(("overrides", "lifted"), [((), True), (("engine.context_length=2048",), False)])
def test_a_shorter_draft_is_lifted_also_for_short_prompts(
    resolve: Resolve, tmp_path: Path, overrides: tuple[str, ...], lifted: bool
) -> None:
    """SGLang starts a draft with the target's context length, whatever the prompts need, and refuses a longer one."""
    write_checkpoint(tmp_path / "draft", max_position_embeddings=2048)
    ready = resolve("method=eagle3", "benchmark.protocols.default.max_new_tokens=9", *overrides)
    assert (LONGER_DRAFT in server_spec([ready]).environment()) == lifted


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}, 10000.0),
        ({"rope_theta": 500000.0}, 500000.0),
    ],
)
def test_r018_the_effective_rope_theta_is_the_one_in_the_config(
    tmp_path: Path, config: dict[str, Any], theta: float
) -> None:
    folder = write_checkpoint(tmp_path / "model", model_type="llama", max_position_embeddings=2048, **config)
    told = effective_config(Checkpoint(folder, "id", None, None))
    assert told == {"rope_theta": theta, "max_position_embeddings": 2048}


@pytest.mark.parametrize(("own", "cap"), [("null", 2048), ("256", 256), ("4096", 2048)])
def test_the_lower_of_the_protocols_cap_and_the_models_own_holds(resolve: Resolve, own: str, cap: int) -> None:
    ready = resolve("method=vanilla", CAP[0], f"model.max_new_tokens={own}")
    assert ready.max_new_tokens == ready.described["benchmark"]["max_new_tokens"] == cap
