"""The training sequences: the target's own greedy answers, read from JSON Lines, cleaned and split.

A line is `{"kind": "code", "prompt_ids": [...], "output_ids": [...]}` (adaptivespec.demo.generate writes them). The file's
order is the order of training, so what matters most stands first.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_PERIOD = 40
MIN_REPEAT = 16
MIN_OUTPUT = 8
SHINGLE = 3
NEAR = 0.5


class TrainingDataError(ValueError):
    """The training data cannot be used; the message names the value, what was expected and the remedy."""


@dataclass(frozen=True)
class Generation:
    """One prompt and the target's greedy answer to it."""

    kind: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and output, as the target read them."""
        return self.prompt_ids + self.output_ids


def read_generations(path: Path) -> list[Generation]:
    """Read a generations file with loops cut; outputs too short to learn from are left out. Raises TrainingDataError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TrainingDataError(
            f"generations={path} cannot be read ({error.strerror}): expected a JSON Lines file; "
            "make one with python -m adaptivespec.demo.generate."
        ) from error
    generations = [_parse(line, number, path) for number, line in enumerate(lines, 1) if line.strip()]
    kept = [g for g in generations if len(g.output_ids) > MIN_OUTPUT and g.prompt_ids]
    if not kept:
        raise TrainingDataError(
            f"generations={path} holds no output longer than {MIN_OUTPUT} tokens: nothing to learn."
        )
    return kept


def _parse(line: str, number: int, path: Path) -> Generation:
    try:
        row = json.loads(line)
        prompt, output = tuple(map(int, row["prompt_ids"])), tuple(map(int, row["output_ids"]))
        return Generation(str(row["kind"]), prompt, output[: loop_start(output)])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise TrainingDataError(
            f"{path}, line {number}, is no generation ({error!r}): expected an object with kind, prompt_ids, output_ids."
        ) from error


def loop_start(tokens: Sequence[int]) -> int:
    """Where a degenerate loop has shown itself: the shortest prefix that ends in a repeat; `len(tokens)` if none does.

    A repeat is a run of at least `MIN_REPEAT` tokens, and at least one period, equal to what stood one period before.
    """
    first = len(tokens)
    for period in range(1, MAX_PERIOD + 1):
        run = 0
        for index in range(period, first):
            run = run + 1 if tokens[index] == tokens[index - period] else 0
            if run >= max(MIN_REPEAT, period):
                first = index + 1
                break
    return first


def split_held_out(generations: Iterable[Generation], every: int) -> tuple[list[Generation], list[Generation]]:
    """(training, held out): one prompt in `every`, chosen by the prompt's own hash, whatever else the file holds."""
    train: list[Generation] = []
    held_out: list[Generation] = []
    for generation in generations:
        digest = hashlib.sha256(repr(generation.prompt_ids).encode()).digest()
        (held_out if int.from_bytes(digest[:4], "big") % every == 0 else train).append(generation)
    return train, held_out


def drop_near(
    generations: Iterable[Generation], questions: Iterable[str], decode: Callable[[list[int]], str]
) -> list[Generation]:
    """Leave out every generation whose prompt contains one of the questions or nearly does (see `is_near`)."""
    problems = [shingles(question) for question in questions]
    return [g for g in generations if not is_near(shingles(decode(list(g.prompt_ids))), problems)]


def fingerprint(generations: Sequence[Generation]) -> str:
    """The generations' content and order as a SHA-256 in hexadecimal."""
    return hashlib.sha256(repr(list(generations)).encode()).hexdigest()


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """The text's runs of `SHINGLE` words (numbers and signs count as words), case and punctuation aside."""
    words = re.findall(r"[a-z_]+|\d+|[+*/<>=-]", text.lower())
    return frozenset(zip(*(words[offset:] for offset in range(SHINGLE)), strict=False))


def is_near(prompt: frozenset[tuple[str, ...]], problems: Iterable[frozenset[tuple[str, ...]]]) -> bool:
    """Whether the prompt holds at least `NEAR` of some problem's shingles (a chat template around it does not hide it)."""
    return any(len(prompt & problem) >= NEAR * len(problem) for problem in problems if problem)
