import re
from collections.abc import Callable

import pytest

from runners.cell import Cell, cell_id
from runners.cli import compose_config
from runners.errors import UserError

CellOf = Callable[..., Cell]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["method=lossy", "kappa=0.1"], ["method=lossy", "kappa=1e-1"]),
        (["method=vanilla", "kappa=0.1"], ["method=vanilla", "kappa=0.3"]),
        (["method=eagle3", "trace=true"], ["method=eagle3", "trace=false"]),
        (["method=vanilla"], ["method=vanilla", "model.draft.id=other"]),
    ],
)
def test_the_same_cell_written_differently_is_one(cell_of: CellOf, one: list[str], other: list[str]) -> None:
    assert cell_of(*one).key == cell_of(*other).key


@pytest.mark.parametrize(
    "change",
    [
        "benchmark.protocols.default.max_new_tokens=99",
        "benchmark.protocols.default.template='{question}!'",
        "model.target.revision=abc",
        "model.draft.path=elsewhere",
        "engine.dtype=bfloat16",
        "kappa=0.21",
        "d=0.4",
        "limit=5",
        "seed=1",
    ],
)
def test_whatever_changes_a_result_makes_another_cell(cell_of: CellOf, change: str) -> None:
    assert cell_of("method=combined", change).key != cell_of("method=combined").key


def test_key_order_does_not_change_the_id() -> None:
    described = {"method": {"name": "m"}, "model": {"name": "a"}, "benchmark": {"name": "b"}, "seed": 0}
    assert cell_id(described) == cell_id(dict(reversed(described.items())))


def test_an_id_is_a_safe_folder_name() -> None:
    described = {"method": {"name": "tree=[3,4,4]/x"}, "model": {"name": "a b"}, "benchmark": {"name": "b"}}
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", cell_id(described))


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["limit=-1"], "limit=-1: expected a whole number above 0"),
        (["limit=0"], "limit=0"),
        (["limit=2.5"], "limit=2.5"),
        (["limit='3'"], "limit='3'"),
        (["seed=-1"], "seed=-1"),
        (["method=lossy", "kappa=0"], "kappa=0"),
        (["method=lossy", "kappa=05"], "kappa='05'"),
        (["method=dynamic", "d=-1"], "d=-1"),
        (["method=static", "method.tree.shape=[3,1,5]"], r"shape=\[3, 1, 5\].*num_steps \+ 1"),
        (["method=static", "method.tree.shape=[0,1,4]"], "num_steps=0"),
        (["method=eagle3", "method.tree.shape=[3,1,5]"], r"shape=\[3, 1, 5\]"),
        (["method=eagle3", "method.tree.shape=[3,1]"], "num_steps, topk, num_draft_tokens"),
        (["method=eagle3", "~method.tree.shape"], "shape"),
        (["method=eagle3", "model.draft=null"], "model.draft is null"),
        (["method=eagle3", "method.accept.rule=margin"], "strict rule"),
        (["engine.dtype=int8"], "engine.dtype=int8"),
        (["engine.cuda_graph=maybe"], "engine.cuda_graph='maybe': expected true or false"),
        (["trace=2"], "trace=2"),
        (["engine.concurrency=0"], "engine.concurrency=0"),
        (["engine.tp_size=two"], "engine.tp_size='two'"),
        (["engine.dp_size=-1"], "engine.dp_size=-1"),
        (["engine.warmup=null"], "engine.warmup=None"),
        (["engine.temperature=-3"], "engine.temperature=-3"),
        (["engine.threads=two"], "engine.threads='two'"),
        (["engine.threads=0"], "engine.threads=0"),
        (["engine.context_length=0"], "engine.context_length=0"),
        (["engine.port=65536"], "engine.port=65536: .*65535"),
        (["engine.port=any"], "engine.port='any'"),
        (["engine.mem_fraction_static=1.5"], "engine.mem_fraction_static=1.5"),
        (["engine.timeouts.start_s=null"], "engine.timeouts.start_s=None"),
        (["engine.server_args=null"], "engine.server_args=None"),
        (["model.max_new_tokens=-5"], "model.max_new_tokens=-5"),
        (["model.parameters=many"], "model.parameters='many'"),
        (["model.typical.tok_s=0"], "model.typical.tok_s=0"),
        (["benchmark.source.count=abc"], "benchmark.source.count='abc'"),
        (["benchmark.protocol=other"], "benchmark.protocol=other"),
        (["benchmark.protocols.default.max_new_tokens=abc"], "benchmark.protocols.default.max_new_tokens='abc'"),
        (["benchmark.protocols.default.max_new_tokens=-5"], "benchmark.protocols.default.max_new_tokens=-5"),
    ],
)
def test_bad_input_is_refused_with_the_value(cell_of: CellOf, overrides: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        cell_of(*overrides)


@pytest.mark.parametrize("word", ["off", "no", "OFF", "false"])
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("engine.cuda_graph", "true"),
        ("engine.radix_cache", "yes"),
        ("engine.overlap_schedule", "on"),
        ("trace", "true"),
        ("benchmark.protocols.default.chat", "true"),
        ("model.enable_thinking", "on"),
    ],
)
def test_a_switch_that_is_off_in_any_word_is_off(cell_of: CellOf, name: str, word: str, other: str) -> None:
    """Hydra hands all words but true and false over as text."""
    off, on = cell_of(f"{name}=false"), cell_of(f"{name}=true")
    assert cell_of(f"{name}={word}").key == off.key != on.key == cell_of(f"{name}={other}").key


@pytest.mark.parametrize("shape", ["[3,1,4]", "[3,4,4]", "[7,1,8]", "[6,2,7]"])
def test_valid_shapes_are_taken(cell_of: CellOf, shape: str) -> None:
    assert cell_of("method=static", f"method.tree.shape={shape}").method["tree"]["shape"] == eval(shape)


def test_r057_a_shape_of_zeros_is_the_baseline(cell_of: CellOf) -> None:
    vanilla = cell_of("method=vanilla")
    for method in ("static", "eagle3"):
        assert cell_of(f"method={method}", "method.tree.shape=[0,0,0]").key == vanilla.key
    with pytest.raises(UserError, match="num_steps=0"):
        cell_of("method=lossy", "method.tree.shape=[0,0,0]")


@pytest.mark.parametrize(("device", "backend"), [("cpu", "intel_amx"), ("cuda", "triton")])
def test_r059_an_unset_attention_backend_is_resolved_in_the_cell(
    monkeypatch: pytest.MonkeyPatch, device: str, backend: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    config = compose_config(["method=static", "method.tree.shape=[3,4,4]", f"engine.device={device}"])
    assert Cell.from_config(config).engine["attention_backend"] == backend


def test_the_papers_kappa_comes_with_the_pair(cell_of: CellOf) -> None:
    pairs = {
        ("combined", "deepseek_r1_8b", "math500"): 0.05,
        ("lossy", "deepseek_r1_8b", "math500"): 0.1,
        ("lossy", "deepseek_r1_8b", "humaneval"): 0.2,
        ("combined", "qwen3_8b", "gsm8k"): 0.1,
    }
    for (method, model, benchmark), kappa in pairs.items():
        cell = cell_of(f"method={method}", f"model={model}", f"benchmark={benchmark}")
        assert cell.method["accept"]["kappa"] == kappa
