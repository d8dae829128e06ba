"""A cell is one row of a table: everything that changes a result, and a name made from exactly that.

cell = Cell.from_config(config)      # the resolved Hydra config of one job
cell.key                             # equal for equal cells, however they were written
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from adaptivespec.checks import check_number
from adaptivespec.options import Options
from adaptivespec.shape import TreeShape
from runners.errors import UserError

Node = Mapping[str, Any]
SCHEMA = 1
ENGINE_KEYS = (
    "device", "dtype", "attention_backend", "cuda_graph", "overlap_schedule", "radix_cache", "tp_size", "dp_size", "concurrency",
    "temperature", "warmup", "mem_fraction_static", "context_length", "threads", "server_args",
)  # fmt: skip
SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
# A sweep over shapes may begin with it, as in SGLang's bench_speculative.py: no drafts, the baseline.
NO_TREE = [0, 0, 0]


@dataclass(frozen=True)
class Cell:
    """One asked cell. The nodes are plain, resolved config; what lies on disk is added by `runners.resolve`."""

    method: Node
    model: Node
    benchmark: Node
    engine: Node
    trace: bool
    seed: int
    repeat: int = 0

    @classmethod
    def from_config(cls, config: Node) -> Cell:
        """Make the cell that one job asks for. Raises UserError where a value is out of range."""
        method = clean_method(config["method"])
        if method["algorithm"] and not (config["model"].get("draft") or {}).get("id"):
            raise UserError(
                f"method={method['name']} needs a draft model, but model.draft is null: choose a model with one, set "
                "model.draft.path=FOLDER, or use method=vanilla"
            )
        return cls(
            method=method,
            model=clean_model(config["model"]),
            benchmark=clean_benchmark({**config["benchmark"], "limit": config["limit"]}),
            engine={key: config["engine"][key] for key in ENGINE_KEYS},
            trace=boolean("trace", config["trace"]) and method["algorithm"] == "ADAPTIVESPEC",
            seed=non_negative("seed", config["seed"]),
        )

    @property
    def speculative(self) -> bool:
        """Whether the arm drafts at all."""
        return self.method["algorithm"] is not None

    @property
    def key(self) -> str:
        """Canonical text: equal cells written differently have the same."""
        model = self.model if self.speculative else {**self.model, "draft": None}
        return canonical([self.method, model, self.benchmark, self.engine, self.trace, self.seed, self.repeat])

    @property
    def label(self) -> str:
        """`combined kappa=0.2 d=0.5 · smollm2_135m · demo`, for people."""
        return f"{self.method_label} · {self.model['name']} · {self.benchmark['name']}" + (
            f" · repeat {self.repeat}" if self.repeat else ""
        )

    @property
    def method_label(self) -> str:
        """The method with the options that are swept."""
        accept, tree = self.method["accept"] or {}, self.method["tree"] or {}
        parts = [self.method["name"]]
        if accept.get("kappa") is not None and accept.get("rule") == "margin":
            parts.append(f"kappa={accept['kappa']:g}")
        if tree.get("policy") == "dcs":
            parts.append(f"d={tree['d']:g}")
        if self.method["name"] == "static":
            parts.append("({},{},{})".format(*tree["shape"]))
        return " ".join(parts)

    def with_repeat(self, repeat: int) -> Cell:
        """The same cell measured once more."""
        return replace(self, repeat=repeat)


def clean_method(node: Node) -> dict[str, Any]:
    """Check a method node and bring it to canonical form (numbers as floats, shapes as lists of ints)."""
    method = {key: node.get(key) for key in ("name", "algorithm", "tree", "accept")}
    if method["algorithm"] not in (None, "EAGLE3", "ADAPTIVESPEC"):
        raise UserError(f"method.algorithm={method['algorithm']}: expected null, EAGLE3 or ADAPTIVESPEC")
    if method["algorithm"] is None:
        return {**method, "tree": None, "accept": None}
    tree = dict(method["tree"] or {})
    if tree.get("shape") == NO_TREE and (method["accept"] or {}).get("rule") == "strict":
        return {"name": "vanilla", "algorithm": None, "tree": None, "accept": None}
    if tree.get("policy") == "static" and tree.get("shape") is None:
        raise UserError(
            f"method={method['name']}: method.tree.shape is missing; give [num_steps,topk,num_draft_tokens], there is no default"
        )
    if tree.get("shape") is not None:
        try:
            tree["shape"] = TreeShape.of(tree["shape"]).as_list()
        except ValueError as error:
            raise UserError(f"method.tree.shape={tree['shape']}: {error}") from None
    if method["algorithm"] == "ADAPTIVESPEC":
        try:
            return {**method, **Options.parse({"tree": tree, "accept": method["accept"]}).to_dict()}
        except ValueError as error:
            raise UserError(f"method={method['name']}: {error}") from None
    if tree.get("policy") != "static" or (method["accept"] or {}).get("rule") != "strict":
        raise UserError(f"method={method['name']}: SGLang's own EAGLE3 only knows a static shape and the strict rule")
    return {**method, "tree": tree, "accept": {"rule": "strict"}}


def clean_model(node: Node) -> dict[str, Any]:
    """Check a model node; its guesses (`typical`, `parameters`) may be null or missing."""
    positive("model.max_new_tokens", node.get("max_new_tokens"), optional=True)
    typical = node.get("typical") or {}
    guesses = {"parameters": node.get("parameters"), **{f"typical.{name}": value for name, value in typical.items()}}
    for name, value in guesses.items():
        if value is not None:
            number(f"model.{name}", value, above=0)
    thinking = node.get("enable_thinking")  # null: the chat template is not told
    return {**node, "enable_thinking": None if thinking is None else boolean("model.enable_thinking", thinking)}


def clean_benchmark(node: Node) -> dict[str, Any]:
    """Check a benchmark node."""
    protocol_of(node)
    protocols = {}
    for name, protocol in node["protocols"].items():
        where = f"benchmark.protocols.{name}"
        positive(f"{where}.max_new_tokens", protocol["max_new_tokens"])
        protocols[name] = {**protocol, "chat": boolean(f"{where}.chat", protocol["chat"])}
    grading = dict(node["grading"])
    if "paper_legacy" in grading:
        grading["paper_legacy"] = boolean("benchmark.grading.paper_legacy", grading["paper_legacy"])
    positive("benchmark.source.count", node["source"]["count"], optional=True)
    limit = positive("limit", node["limit"], optional=True)
    return {**node, "limit": limit, "protocols": protocols, "grading": grading}


def protocol_of(benchmark: Node) -> Node:
    """Return the settings of the benchmark's chosen protocol."""
    name, known = benchmark["protocol"], benchmark["protocols"]
    if name not in known:
        raise UserError(f"benchmark.protocol={name}: {benchmark['name']} knows {', '.join(sorted(known))}")
    protocol: Node = known[name]
    return protocol


def clean_engine(node: Node) -> dict[str, Any]:
    """Check an engine node that is resolved for a machine (`runners.cli.resolve_engine`)."""
    if node["dtype"] not in ("bfloat16", "float16", "float32"):
        raise UserError(f"engine.dtype={node['dtype']}: expected bfloat16, float16 or float32")
    for name in ("concurrency", "tp_size", "dp_size"):
        positive(f"engine.{name}", node[name])
    for name in ("context_length", "threads", "port"):
        positive(f"engine.{name}", node[name], optional=True)
    if node["port"] is not None:
        number("engine.port", node["port"], above=0, at_most=65535)
    non_negative("engine.warmup", node["warmup"])
    number("engine.temperature", node["temperature"], at_least=0)
    if node["mem_fraction_static"] is not None:
        number("engine.mem_fraction_static", node["mem_fraction_static"], above=0, at_most=1)
    for name, value in node["timeouts"].items():
        number(f"engine.timeouts.{name}", value, above=0)
    if not isinstance(node["server_args"], Mapping):
        raise UserError(f"engine.server_args={node['server_args']!r}: expected {{flag_name: value}}, {{}} for none")
    switches = ("cuda_graph", "overlap_schedule", "radix_cache")
    return {**node, **{name: boolean(f"engine.{name}", node[name]) for name in switches}}


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: the text that is hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def cell_id(described: Node) -> str:
    """`<method>-<model>-<benchmark>-<12 hex digits>`, safe as a folder's name; the digits hash all of `described`."""
    digits = hashlib.sha256(canonical(described).encode()).hexdigest()[:12]
    names = (described["method"]["name"], described["model"]["name"], described["benchmark"]["name"])
    return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names), digits])


def positive(name: str, value: Any, *, optional: bool = False) -> int | None:
    """Check a count. Raises UserError unless it is a whole number above 0 (or null where `optional`)."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise UserError(f"{name}={value!r}: expected a whole number above 0{' or null' if optional else ''}")
    return value


def non_negative(name: str, value: Any) -> int:
    """Check a seed or an index."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{name}={value!r}: expected a whole number, 0 or above")
    return value


def number(name: str, value: Any, **bounds: Any) -> None:
    """Check a number that need not be whole; `bounds` as for `check_number`."""
    try:
        check_number(name, value, **bounds)
    except ValueError as error:
        raise UserError(str(error)) from None


def boolean(name: str, value: Any) -> bool:
    """Read a switch. Hydra hands `on`, `off`, `yes` and `no` over as text, and to Python any text is true."""
    switch = SWITCHES.get(str(value).lower())
    if switch is None:
        raise UserError(f"{name}={value!r}: expected true or false (on, off, yes and no will do)")
    return switch
