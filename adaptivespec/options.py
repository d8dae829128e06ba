"""One validated options object: the server's, and what a request may change of it.

Server-wide, inline JSON or the path of a JSON file in the environment variable ADAPTIVESPEC_CONFIG:

    {"tree": {"policy": "dcs", "d": 0.5}, "accept": {"rule": "margin", "kappa": 0.2}}

Per request, custom_params={"adaptivespec": {"kappa": 0.1, "d": 0.3, "trace": true}}. Unknown keys raise.
"""

import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from adaptivespec.accept import Margin, Rule, Strict, Window
from adaptivespec.checks import check_bool, check_number
from adaptivespec.shape import TreeShape
from adaptivespec.tree import CycleTree, DcsTree, StaticTree, TalonTree, TreePolicy

RULES: dict[str, type[Any]] = {"strict": Strict, "margin": Margin, "window": Window}
"""Every accept rule by the name that configs and requests use. Your own goes here: docs/extending.md."""

TREE_POLICIES: dict[str, type[Any]] = {"static": StaticTree, "dcs": DcsTree, "talon": TalonTree, "cycle": CycleTree}
"""Every tree policy by the name that configs use. Your own goes here: docs/extending.md."""

ENV = "ADAPTIVESPEC_CONFIG"
STEP_TIMES_ENV = "ADAPTIVESPEC_STEP_TIMES"
"""Path that a server writes its steps' times to (sglang_plugin/step_times.py); a diagnostic."""
REQUEST_KEY = "adaptivespec"
_REQUEST_ONLY = ("rule", "d", "trace")


@dataclass(frozen=True)
class RequestOptions:
    """What one request asked for, over the server's defaults."""

    rule: Rule
    d: float | None = None
    """The request's own DCS threshold; None takes the server's."""
    trace: bool = False
    names_rule: bool = False
    """Whether the request itself named the rule or one of the rule's options."""


@dataclass(frozen=True)
class Options:
    """A tree policy and the default accept rule. The defaults are the paper's `combined` method."""

    tree: TreePolicy = field(default_factory=DcsTree)
    accept: Rule = field(default_factory=Margin)

    def __post_init__(self) -> None:
        self.check_rule(self.accept)

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> "Options":
        """From `{"tree": {"policy": ...}, "accept": {"rule": ...}}`; what is left out takes its default.

        Raises:
            ValueError: naming the key or value that does not fit.
        """
        _check_keys(config, ("tree", "accept"), "ADAPTIVESPEC options")
        tree = config.get("tree", {"policy": "dcs"})
        accept = config.get("accept", {"rule": "margin"})  # false or null is no rule: off is "strict"
        return cls(
            tree=_build(TREE_POLICIES, "policy", tree, "tree"),
            accept=_build(RULES, "rule", accept, "accept"),
        )

    @classmethod
    def load(cls, source: str | None) -> "Options":
        """From inline JSON or the path of a JSON file; the defaults if `source` is None or empty.

        Raises:
            ValueError: if it is neither, or its content does not fit.
        """
        if not source:
            return cls()
        text = source
        if not source.lstrip().startswith("{"):
            path = Path(source)
            if not path.is_file():
                raise ValueError(f"{ENV}={source!r}: expected inline JSON or the path of a JSON file; no such file")
            text = path.read_text(encoding="utf-8")
        try:
            config = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{ENV}={source!r}: not valid JSON ({error})") from error
        if not isinstance(config, dict):
            raise ValueError(f'{ENV}={source!r}: expected a JSON object such as {{"tree": {{"policy": "dcs"}}}}')
        return cls.parse(config)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Every option with its effective value, in the form that `parse` reads."""
        return {
            "tree": {"policy": self.tree.name, **_values(self.tree)},
            "accept": {"rule": self.accept.name, **_values(self.accept)},
        }

    def for_request(self, params: object) -> RequestOptions:
        """A request's options; `params` is its custom_params["adaptivespec"], None if it has none.

        A rule's options go with the rule: without `rule` they change the server's, with another rule's name they
        change that rule's defaults.

        Raises:
            ValueError: naming the key or value that does not fit.
        """
        if params is None:
            return RequestOptions(self.accept)
        if not isinstance(params, Mapping):
            raise ValueError(f"{REQUEST_KEY}={params!r}: expected an object such as {{'kappa': 0.2}}")
        rule_options = {key: value for key, value in params.items() if key not in _REQUEST_ONLY}
        rule = self._request_rule(params.get("rule", self.accept.name), rule_options)
        self.check_rule(rule)
        d, trace = params.get("d"), params.get("trace", False)
        if d is not None:
            check_number("d", d, above=0.0)
            if not isinstance(self.tree, DcsTree):
                raise ValueError(f"d={d!r}: this server's tree policy is {self.tree.name}; d belongs to dcs")
        check_bool("trace", trace)
        return RequestOptions(rule, d, trace, names_rule="rule" in params or bool(rule_options))

    def _request_rule(self, name: object, values: dict[str, Any]) -> Rule:
        if name == self.accept.name:
            known = [item.name for item in _own_fields(self.accept)]
            _check_keys(values, (*known, *_REQUEST_ONLY), f"{REQUEST_KEY} options under rule {self.accept.name}")
            return replace(self.accept, **values)  # type: ignore[type-var]
        rule: Rule = _build(RULES, "rule", {"rule": name, **values}, REQUEST_KEY, _REQUEST_ONLY)
        return rule

    def check_rule(self, rule: Rule) -> None:
        """Raise ValueError if the rule is not defined on some tree that this policy may draft."""
        trees = [shape for shape in self.tree.shapes() if not shape.is_chain]
        if rule.chains_only and trees:
            raise ValueError(
                f"rule {rule.name!r} is defined on chains only, but tree policy {self.tree.name!r} drafts trees such "
                f"as ({trees[0]}); use a static chain, as (7,1,8), or another rule"
            )


def _build(kinds: Mapping[str, type[Any]], tag: str, values: object, where: str, extra: tuple[str, ...] = ()) -> Any:
    """The object that `values[tag]` names, made from the rest of `values`; `extra` keys are known elsewhere."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}={values!r}: expected an object with {tag!r}")
    name = values.get(tag)
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(f"{where}.{tag}={name!r}: expected one of {', '.join(kinds)}")
    kind = kinds[name]
    known = [item.name for item in _own_fields(kind)]
    _check_keys(values, (tag, *known, *extra), f"{where} options of {tag} {name}")
    return kind(**{key: _from_json(key, value) for key, value in values.items() if key in known})


def _check_keys(values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(map(str, set(values) - set(known)))
    if unknown:
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(known)}")


def _own_fields(kind: Any) -> list[Field[Any]]:
    return [item for item in fields(kind) if item.init]


def _from_json(key: str, value: Any) -> Any:
    if key == "shape":
        return value if isinstance(value, TreeShape) else TreeShape.of(value)
    if key == "table":
        if not isinstance(value, list | tuple):
            raise ValueError(f"table={value!r}: expected a list of [num_steps, topk, num_draft_tokens]")
        return tuple(TreeShape.of(triplet) for triplet in value)
    return value


def _values(item: Any) -> dict[str, Any]:
    return {part.name: _to_json(getattr(item, part.name)) for part in _own_fields(item)}


def _to_json(value: Any) -> Any:
    if isinstance(value, TreeShape):
        return value.as_list()
    return [_to_json(part) for part in value] if isinstance(value, tuple) else value
