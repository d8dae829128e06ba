"""What a run trains on, in which portions: shards of the file in its order, batches within a round in random order."""

import json
import random
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from adaptivespec.demo.features import Featured
from adaptivespec.demo.sequences import Generation


def excluded_questions(files: Sequence[str]) -> list[str]:
    """The packaged problems' questions and those of `files`."""
    packaged = resources.files("adaptivespec.demo")
    texts = [packaged.joinpath(name).read_text(encoding="utf-8") for name in ("problems.jsonl", "problems_dev.jsonl")]
    texts += [Path(file).read_text(encoding="utf-8") for file in files]
    return [json.loads(line)["question"] for text in texts for line in text.splitlines() if line.strip()]


def make_shards(generations: Sequence[Generation], shard_tokens: int, tokens: int) -> list[list[Generation]]:
    """Cut the file, in order, into shards of about `shard_tokens` output tokens, until `tokens` are reached."""
    shards: list[list[Generation]] = []
    size, total = shard_tokens, 0
    for generation in generations:
        if size >= shard_tokens:
            if total >= tokens:
                break
            shards.append([])
            size = 0
        shards[-1].append(generation)
        size += len(generation.output_ids)
        total += len(generation.output_ids)
    return shards


def make_batches(sequences: Sequence[Featured], batch_tokens: int, chance: random.Random) -> list[list[Featured]]:
    """Batches of about `batch_tokens` trained positions and like lengths, in random order."""
    ordered = sorted(sequences, key=lambda s: (len(s.ids) // 32, chance.random()))
    batches: list[list[Featured]] = [[]]
    size = 0
    for sequence in ordered:
        if size >= batch_tokens:
            batches.append([])
            size = 0
        batches[-1].append(sequence)
        size += sequence.trained
    chance.shuffle(batches)
    return batches
