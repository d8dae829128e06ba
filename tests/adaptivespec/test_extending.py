"""The examples of docs/extending.md are the code they claim to be."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptivespec import accept, checks, options, tree
from adaptivespec.accept import verify_tree

DOCS = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture(scope="module")
def classes() -> dict[str, Any]:
    """Run each indented code block that defines a class."""
    namespace: dict[str, Any] = {}
    for module in (accept, tree, checks):
        namespace.update(vars(module))
    namespace["__name__"] = __name__
    blocks = re.findall(r"(?:^    .*\n|^\n)+", DOCS.read_text(), re.MULTILINE)
    for block in blocks:
        code = "\n".join(line[4:] for line in block.splitlines())
        if "class " in code:
            exec(code, namespace)
    return namespace


def test_the_rule_promotes_among_the_first_k(classes: dict[str, Any]) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 3)
    for token, k, accepted in ((1, 2, [1]), (2, 2, []), (2, 3, [1])):
        assert verify_tree([0, token, 3], [-1, 0, 1], logits, classes["TopK"](k)).accepted == accepted
    with pytest.raises(ValueError, match="k=0"):
        classes["TopK"](0)


def test_both_serve_from_a_config_by_one_line_in_a_table(
    classes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(options.RULES, "topk", classes["TopK"])
    monkeypatch.setitem(options.TREE_POLICIES, "sure", classes["SureTree"])
    config = {"tree": {"policy": "sure", "p": 0.7}, "accept": {"rule": "topk", "k": 3}}
    parsed = options.Options.parse(config)
    assert parsed.to_dict() == config
    assert parsed.for_request({"k": 2}).rule == classes["TopK"](2)
    history = tree.AcceptHistory(parsed.tree.history)
    assert [str(parsed.tree.select(parsed.tree.signal([p], history, None))) for p in (0.6, 0.8)] == ["3,4,4", "7,1,8"]
