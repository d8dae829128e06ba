"""From an asked cell to one that can run: weights found, problems loaded, prompts rendered, identity complete.

ready = Resolver().resolve(cell)
ready.id, ready.described, ready.prompts
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluators.problems import Problem, ProblemError, ProblemSet, load_problems
from evaluators.prompts import render
from runners.cell import Cell, Node, canonical, cell_id, protocol_of
from runners.checkpoint import Checkpoint, locate
from runners.errors import UserError


@dataclass(frozen=True)
class Prompt:
    """One request's input."""

    problem: Problem
    text: str
    ids: tuple[int, ...]

    @property
    def sha256(self) -> str:
        """Of the prompt as sent."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def in_thought(self) -> bool:
        """Whether the prompt ends inside an open reasoning block, so that the output begins in it."""
        return self.text.rstrip().endswith("<think>")


@dataclass(frozen=True)
class Ready:
    """A cell with all that its run needs."""

    cell: Cell
    target: Checkpoint
    draft: Checkpoint | None
    prompts: tuple[Prompt, ...]
    max_new_tokens: int
    stop: tuple[str, ...]
    described: dict[str, Any]
    """What is hashed into the id and written as `cell` in the record (docs/data.md)."""

    @cached_property
    def id(self) -> str:
        """Name of the cell and of its folder."""
        return cell_id(self.described)

    @property
    def context_needed(self) -> int:
        """Positions that the longest prompt and its cap take."""
        return max(len(prompt.ids) for prompt in self.prompts) + self.max_new_tokens


class Resolver:
    """Resolves cells; what cells share (weights, tokenizer, prompts) is found once."""

    def __init__(self) -> None:
        self._memory: dict[str, Any] = {}

    def resolve(self, cell: Cell) -> Ready:
        """Return the runnable cell. Raises UserError where weights or problems are out of reach."""
        target = self._once(["target", cell.model["target"]], lambda: locate(cell.model["target"], "target"))
        draft = (
            self._once(["draft", cell.model["draft"]], lambda: locate(cell.model["draft"], "draft"))
            if cell.speculative
            else None
        )
        protocol = protocol_of(cell.benchmark)
        problems = self._once(["problems", cell.benchmark], lambda: problems_of(cell.benchmark))
        tokenizer = self._once(["tokenizer", str(target.path)], lambda: load_tokenizer(target.path))
        prompts = self._once(
            ["prompts", str(target.path), cell.benchmark, cell.model["enable_thinking"]],
            lambda: tuple(prompt_for(problem, cell, tokenizer) for problem in problems.problems),
        )
        described = {
            "method": dict(cell.method),
            "model": {
                "name": cell.model["name"],
                "target": target.identity(),
                "draft": draft.identity() if draft else None,
                "chat_template_sha256": hashlib.sha256((tokenizer.chat_template or "").encode()).hexdigest(),
                "enable_thinking": cell.model["enable_thinking"],
            },
            "benchmark": {
                "name": cell.benchmark["name"],
                "protocol": cell.benchmark["protocol"],
                "limit": cell.benchmark["limit"],
                "sample": cell.benchmark["sample"],
                "n_items": len(prompts),
                "max_new_tokens": cap_of(cell),
                "stop": list(protocol["stop"] or []),
                "data_sha256": problems.sha256,
                "prompts_sha256": hashlib.sha256("".join(prompt.sha256 for prompt in prompts).encode()).hexdigest(),
            },
            "engine": {**cell.engine, "sglang": importlib.metadata.version("sglang")},
            "trace": cell.trace,
            "seed": cell.seed,
            "repeat": cell.repeat,
        }
        ready = Ready(cell, target, draft, prompts, cap_of(cell), tuple(protocol["stop"] or ()), described)
        check_context(ready)
        return ready

    def _once(self, key: list[Any], make: Any) -> Any:
        text = canonical(key)
        if text not in self._memory:
            try:
                self._memory[text] = make()
            except UserError as error:  # a hub out of reach is tried for minutes, and not again for every cell
                self._memory[text] = error
        if isinstance(found := self._memory[text], UserError):
            raise found
        return found


def cap_of(cell: Cell) -> int:
    """Output tokens at most: the protocol's, or the model's own where that is lower."""
    cap: int = protocol_of(cell.benchmark)["max_new_tokens"]
    return min(cap, cell.model.get("max_new_tokens") or cap)


def problems_of(benchmark: Node) -> ProblemSet:
    """Load the benchmark's problems. Raises UserError where they are out of reach or not what was pinned."""
    try:
        return load_problems(benchmark)
    except ProblemError as error:
        raise UserError(str(error)) from error


def load_tokenizer(folder: Path) -> Any:
    """Load the target's own tokenizer. Raises UserError where the folder has none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"model.target: {folder} has no tokenizer that transformers can load ({reason}): expected the files saved with the model"
        ) from error


def prompt_for(problem: Problem, cell: Cell, tokenizer: Any) -> Prompt:
    """Render and tokenize one problem: the engine gets ids, so that nothing is added twice (some tokenizers prepend a BOS)."""
    rendered = render(problem, cell.benchmark, cell.model["target"]["id"])
    if rendered.messages is None:
        text = str(rendered.text)
        return Prompt(problem, text, tuple(tokenizer(text)["input_ids"]))
    if not tokenizer.chat_template:
        raise UserError(
            f"model={cell.model['name']} has no chat template, which benchmark.protocol={cell.benchmark['protocol']} needs: "
            "use a chat model or benchmark.protocol=specforge"
        )
    thinking = {} if cell.model["enable_thinking"] is None else {"enable_thinking": cell.model["enable_thinking"]}
    text = tokenizer.apply_chat_template(rendered.messages, tokenize=False, add_generation_prompt=True, **thinking)
    return Prompt(problem, text, tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))


def check_context(ready: Ready) -> None:
    """Refuse before launch what would not fit. Raises UserError naming the numbers."""
    cell, needed = ready.cell, ready.context_needed
    remedy = f"lower benchmark.protocols.{cell.benchmark['protocol']}.max_new_tokens (now {ready.max_new_tokens})"
    limit = max_positions(ready.target)
    if limit and needed > limit:
        raise UserError(
            f"model={cell.model['name']} takes {limit} positions, but the longest prompt of {cell.benchmark['name']} and its cap need "
            f"{needed}: {remedy}"
        )
    draft = max_positions(ready.draft) if ready.draft else None
    if draft and needed > draft and cell.model.get("draft_max_positions") != draft:
        raise UserError(
            f"model.draft of {cell.model['name']} takes {draft} positions, but the longest prompt of {cell.benchmark['name']} and its cap "
            f"need {needed}: {remedy}, or say model.draft_max_positions={draft} to have the draft go on beyond them"
        )


def draft_is_shorter(ready: Ready) -> bool:
    """Whether the draft takes fewer positions than the engine gives it: SGLang starts every draft with the target's context length."""
    limit = max_positions(ready.draft) if ready.draft else None
    context = ready.cell.engine["context_length"] or max_positions(ready.target)
    return limit is not None and context is not None and context > limit


def max_positions(checkpoint: Checkpoint) -> int | None:
    """Positions that a checkpoint's config allows."""
    limit = json.loads((checkpoint.path / "config.json").read_text()).get("max_position_embeddings")
    return int(limit) if limit else None


def effective_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the installed transformers reads from a checkpoint's config: releases differ in where they look for `rope_theta`."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(checkpoint.path))
    except (OSError, ValueError, KeyError):  # a config of a kind that transformers does not know
        return {"rope_theta": None, "max_position_embeddings": max_positions(checkpoint)}
    rope = getattr(config, "rope_parameters", None) or {}
    return {
        "rope_theta": rope.get("rope_theta", getattr(config, "rope_theta", None)),
        "max_position_embeddings": getattr(config, "max_position_embeddings", None),
    }
