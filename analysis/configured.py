"""What conf/ says, for tables that must know it: a method's options, and kappa and d by model and benchmark.

configured.method("fly"); configured.per_cell("kappa", "combined", "smollm2_135m", "demo")
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from omegaconf import OmegaConf

from analysis.records import Node

PER_CELL = ("kappa", "d")


@cache
def node(name: str) -> Node:
    """conf/NAME.yaml as it is written: interpolations stay texts."""
    text = (files("conf") / f"{name}.yaml").read_text(encoding="utf-8")
    plain = OmegaConf.to_container(OmegaConf.create(text))
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


def method(name: str) -> Node:
    """What a method is, kappa and d aside."""
    return options(node(f"method/{name}"))


def options(method: Node) -> Node:
    """Algorithm, tree policy and accept rule of a method node, less what is given per cell."""
    parts = {
        part: {name: value for name, value in (method[part] or {}).items() if name not in PER_CELL}
        for part in ("tree", "accept")
    }
    return {"algorithm": method["algorithm"], **parts}


def per_cell(option: str, *place: str) -> float:
    """The kappa of (method, model, benchmark) or the d of (model, benchmark) that a run takes when nobody says it."""
    known = found = node("per_cell")["per_cell"][option]
    for key in place:
        found = found.get(key, {})
    return float(found or known["default"])
