import json
from pathlib import Path

import pytest
import yaml

from adaptivespec.accept import Margin, Strict, Window
from adaptivespec.options import Options
from adaptivespec.shape import TreeShape
from adaptivespec.tree import DcsTree, StaticTree

METHODS = Path(__file__).parents[2] / "conf" / "method"
CHAIN = {"tree": {"policy": "static", "shape": [7, 1, 8]}}


def test_the_defaults_are_the_papers_combined_method() -> None:
    options = Options.load(None)
    assert options == Options(DcsTree(d=0.5, alpha=0.3), Margin(kappa=0.2))
    assert Options.load("") == options


@pytest.mark.parametrize("path", sorted(METHODS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_method_file_is_exact_and_names_every_option(path: Path) -> None:
    text = path.read_text().replace("${kappa}", "0.2").replace("${d}", "0.5")
    method = yaml.safe_load(text)
    assert text.startswith(f"# python run.py method={path.stem}")
    assert list(method) == ["name", "algorithm", "tree", "accept"]
    assert method["name"] == path.stem
    if method["algorithm"] is None:
        assert method["tree"] is method["accept"] is None
    else:
        config = {"tree": method["tree"], "accept": method["accept"]}
        assert Options.parse(config).to_dict() == config


@pytest.mark.parametrize("accept", [{"rule": "strict"}, {"rule": "margin", "kappa": 0.05}, {"rule": "window", "w": 2}])
def test_options_come_back_from_their_dict_and_from_json(accept: dict[str, object], tmp_path: Path) -> None:
    options = Options.parse({**CHAIN, "accept": accept})
    assert Options.parse(options.to_dict()) == options
    assert Options.load(json.dumps(options.to_dict())) == options
    file = tmp_path / "options.json"
    file.write_text(json.dumps(options.to_dict()))
    assert Options.load(str(file)) == options


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"three": {}}, "unknown three"),
        ({"tree": {"policy": "dsc"}}, "static, dcs, talon, cycle"),
        ({"tree": {"policy": "dcs", "shape": [3, 1, 4]}}, "unknown shape"),
        ({"tree": {"policy": "dcs", "d": 0}}, "d=0"),
        ({"tree": "dcs"}, "tree='dcs'"),
        ({"accept": {"rule": "strict", "kappa": 0.1}}, "unknown kappa"),
        ({"accept": {"kappa": 0.1}}, "accept.rule=None"),
        ({"accept": {"rule": "window"}}, "chains only"),
        ({"tree": {"policy": "static", "shape": [3, 1, 8]}}, "num_steps + 1"),
        ({"tree": {"policy": "static", "shape": 5}}, "shape 5"),
        ({"tree": {"policy": "talon", "table": 5}}, "table=5"),
        ({"tree": {"policy": "talon", "table": [3]}}, "shape 3"),
        ({"tree": {"policy": "talon", "table": []}}, "table=[]"),
        ({"tree": []}, "tree=[]"),
        ({"accept": False}, "accept=False"),
        ({"accept": None}, "accept=None"),
        ({"accept": {"rule": "margin", "kappa": 10**400}}, "kappa=1000"),
    ],
)
def test_a_bad_config_is_refused_by_name(config: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=r"known are|expected|chains only|must be") as caught:
        Options.parse(config)
    assert names in str(caught.value)


@pytest.mark.parametrize("source", ["no/such/file.json", "{broken", "{}x"])
def test_a_bad_source_names_the_variable(source: str) -> None:
    with pytest.raises(ValueError, match="ADAPTIVESPEC_CONFIG"):
        Options.load(source)


def test_a_request_changes_what_it_names_and_no_more() -> None:
    options = Options.parse({"accept": {"rule": "margin", "kappa": 0.2, "max_promotions": None}})
    assert options.for_request(None).rule == Margin(0.2, None)
    assert not options.for_request({"d": 0.3, "trace": True}).names_rule
    request = options.for_request({"kappa": 0.1, "d": 0.3, "trace": True})
    assert (request.rule, request.d, request.trace, request.names_rule) == (Margin(0.1, None), 0.3, True, True)
    assert options.for_request({"rule": "strict"}).rule == Strict()


def test_another_rule_starts_from_its_own_defaults() -> None:
    options = Options.parse({**CHAIN, "accept": {"rule": "strict"}})
    assert options.for_request({"rule": "window", "theta": 0.1}).rule == Window(theta=0.1)
    assert options.for_request({"rule": "margin"}).rule == Margin()


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"kapa": 0.1}, "unknown kapa; known are kappa"),
        ({"kappa": 0}, "kappa=0"),
        ({"kappa": "0.1"}, "kappa='0.1'"),
        ({"rule": "strict", "kappa": 0.1}, "unknown kappa"),
        ({"rule": "window"}, "chains only"),
        ({"rule": 3}, "rule=3"),
        ({"rule": None}, "rule=None"),
        ({"d": -1}, "d=-1"),
        ({"trace": "yes"}, "trace='yes'"),
        ([0.1], "[0.1]"),
    ],
)
def test_a_bad_request_is_refused_by_name(params: object, names: str) -> None:
    with pytest.raises(ValueError, match=r"known are|expected|chains only") as caught:
        Options().for_request(params)
    assert names in str(caught.value)


def test_d_belongs_to_dcs() -> None:
    options = Options(StaticTree(TreeShape(3, 1, 4)), Strict())
    with pytest.raises(ValueError, match="static; d belongs to dcs"):
        options.for_request({"d": 0.5})
