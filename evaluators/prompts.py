"""The prompt of a problem under a protocol (paper Appendix C); templates and caps live in conf/benchmark.

A chat protocol gives messages, to be put through the model's own chat template; a raw one gives the text as it is sent.

    python run.py benchmark=gsm8k benchmark.protocol=specforge limit=8
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluators.problems import Problem


@dataclass(frozen=True)
class Prompt:
    """Exactly one of the two is set."""

    messages: list[dict[str, str]] | None
    text: str | None


def render(problem: Problem, benchmark: Mapping[str, Any], model_id: str = "") -> Prompt:
    """The prompt under `benchmark["protocol"]`; raises ValueError where there is no such protocol.

    `model_id` (hub id or path) picks the conversation template in protocols that imitate SGLang's built-in ones.
    """
    name, protocols = benchmark["protocol"], benchmark["protocols"]
    if name not in protocols:
        raise ValueError(
            f"benchmark.protocol={name} is unknown for {benchmark['name']}: expected one of {', '.join(protocols)}."
        )
    protocol = protocols[name]
    text = _template(protocol, model_id).replace("{shots}", problem.extra.get("shots", ""))
    text = text.replace("{question}", problem.question)
    if protocol["chat"]:
        return Prompt([{"role": "user", "content": text}], None)
    return Prompt(None, text)


def _template(protocol: Mapping[str, Any], model_id: str) -> str:
    for candidate in protocol.get("template_by_model", ()):
        if re.search(candidate["match"], model_id, re.IGNORECASE):
            return str(candidate["template"])
    return str(protocol["template"])
