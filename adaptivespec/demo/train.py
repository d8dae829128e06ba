"""Train an EAGLE-3 draft head for a target on the target's own answers; stops and resumes anywhere.

    python -m adaptivespec.demo.train --generations FILE --target DIR --out DIR

A round trains on one new shard of the file and on `replay` earlier ones; what a kill interrupts is repeated from the
round's start, so that the result is that of an uninterrupted run. docs/training.md tells the whole way.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adaptivespec.demo.drafter import Drafter, init_from_target, load_drafter, save_drafter
from adaptivespec.demo.evaluate import evaluate
from adaptivespec.demo.features import Featured, load_or_compute, load_target, rope_table
from adaptivespec.demo.sequences import Generation, TrainingDataError, drop_near, read_generations, split_held_out
from adaptivespec.demo.unroll import Frozen, distillation_loss, pack


@dataclass(frozen=True)
class Settings:
    """Everything that shapes a run; kept beside its checkpoints."""

    generations: str
    target: str
    out: str
    init: str | None = None
    """A head to start from, with its draft vocabulary; none starts from the target's last layer."""
    exclude: tuple[str, ...] = ()
    """JSON Lines with a `question` each: prompts equal or near to one are left out, besides the packaged problems'."""
    tokens: int = 1_000_000
    """Unique output tokens to train on; may be changed when a run resumes."""
    draft_vocab: int = 4096
    depths: int = 5
    decay: float = 0.8
    """Weight of depth i + 1 over that of depth i."""
    lr: float = 8e-4
    warmup_rounds: int = 1
    cooldown: float = 0.3
    """Share of the rounds, at the end, over which the rate falls linearly; before, it is constant."""
    shard_tokens: int = 8192
    batch_tokens: int = 800
    replay: int = 1
    held_out_every: int = 50
    held_out_limit: int = 64
    evaluate_every: int = 4
    device: str = "cpu"
    seed: int = 0


class Run:
    """A run's data, head and place; `rounds()` goes on from where the last process stopped."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.out = Path(settings.out)
        self.device = torch.device(settings.device)
        self.target = load_target(settings.target, self.device)
        train, held_out = split_held_out(self._generations(), settings.held_out_every)
        self.shards = make_shards(train, settings.shard_tokens, settings.tokens)
        self.held_out = held_out[: settings.held_out_limit]
        torch.manual_seed(settings.seed)
        self.drafter = self._first_drafter(train).to(self.device)
        self.optimizer = make_optimizer(self.drafter)
        self.frozen = self._borrow()
        self.round = self.seconds = 0
        self._resume()

    def _generations(self) -> list[Generation]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.settings.target)
        generations = read_generations(Path(self.settings.generations))
        kept = drop_near(generations, excluded_questions(self.settings.exclude), tokenizer.decode)
        self.dropped = len(generations) - len(kept)
        return kept

    def _first_drafter(self, train: Sequence[Generation]) -> Drafter:
        if self.settings.init:
            return load_drafter(Path(self.settings.init), self.target)
        return init_from_target(
            self.target, frequent_tokens(train, self.target, self.settings.draft_vocab), self.settings.seed
        )

    def _borrow(self) -> Frozen:
        longest = max(len(g.ids) for g in self.held_out + [g for shard in self.shards for g in shard])
        embedding = self.target.get_input_embeddings().weight.float()
        head = self.target.lm_head.weight[self.drafter.d2t].float()
        return Frozen(embedding, head, *rope_table(self.target, longest + self.settings.depths + 8))

    @property
    def checkpoint(self) -> Path:
        """Head, optimizer and place of the last whole round."""
        return self.out / "checkpoint.pt"

    def _resume(self) -> None:
        identity = {
            k: v for k, v in asdict(self.settings).items() if k not in ("tokens", "out", "device", "evaluate_every")
        }
        if not self.checkpoint.exists():
            self._save()
            return
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        changed = {k for k, v in identity.items() if list_or(state["settings"][k]) != list_or(v)}
        if changed:
            raise TrainingDataError(
                f"{self.out} holds a run with other settings ({', '.join(sorted(changed))}): "
                "repeat them to resume, or choose another --out."
            )
        self.drafter.load_state_dict(state["drafter"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.round, self.seconds = state["round"], state["seconds"]

    def _save(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "settings": asdict(self.settings),
            "drafter": self.drafter.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "round": self.round,
            "seconds": self.seconds,
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.checkpoint)

    def shard(self, index: int) -> list[Featured]:
        """Features of training shard `index`."""
        return load_or_compute(self.target, self.shards[index], self.out / "features" / f"{index:05d}.safetensors")

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Train round by round to the end; yields each round's line of the log, the checkpoint already written."""
        held_out = load_or_compute(self.target, self.held_out, self.out / "features" / "held_out.safetensors")
        if self.round == 0:
            yield {
                "round": 0,
                "held_out": asdict(evaluate(self.drafter, held_out, self.frozen)),
                "dropped": self.dropped,
            }
        while self.round < len(self.shards):
            started = time.monotonic()
            line = self._train_round()
            self.round += 1
            if self.round % self.settings.evaluate_every == 0 or self.round == len(self.shards):
                line["held_out"] = asdict(evaluate(self.drafter, held_out, self.frozen))
            self.seconds += time.monotonic() - started
            self._save()
            yield {"round": self.round, "unique_tokens": self.unique_tokens(), **line, "seconds": round(self.seconds)}

    def unique_tokens(self) -> int:
        """Output tokens of the shards trained on so far."""
        return sum(len(g.output_ids) for shard in self.shards[: self.round] for g in shard)

    def _train_round(self) -> dict[str, Any]:
        chance = random.Random(f"{self.settings.seed} {self.round}")
        earlier = chance.sample(range(self.round), min(self.settings.replay, self.round))
        sequences = [sequence for index in (self.round, *earlier) for sequence in self.shard(index)]
        lr = learning_rate(self.settings, self.round, len(self.shards))
        losses, accepted, trained = [], [], 0
        for group in make_batches(sequences, self.settings.batch_tokens, chance):
            loss, acceptance = self._step(group, lr)
            losses.append(loss)
            accepted.append(acceptance)
            trained += sum(sequence.trained for sequence in group)
        return {
            "trained_tokens": trained,
            "lr": lr,
            "loss": round(float(torch.stack(losses).mean()), 4),
            "accepted": [round(x, 3) for x in torch.stack(accepted).mean(0).tolist()],
        }

    def _step(self, group: Sequence[Featured], lr: float) -> tuple[Tensor, Tensor]:
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = lr
        batch = pack(group, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type != "cpu"):
            loss, acceptance = distillation_loss(
                self.drafter, batch, self.frozen, self.settings.depths, self.settings.decay
            )
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach(), acceptance

    def export(self, folder: Path) -> None:
        """Write the head as SGLang loads it."""
        save_drafter(self.drafter, self.target.config, folder)


def list_or(value: object) -> object:
    """Tuples as lists: a checkpoint does not tell them apart."""
    return list(value) if isinstance(value, tuple) else value


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


def frequent_tokens(train: Sequence[Generation], target: Any, count: int) -> Tensor:
    """[count]: the outputs' most frequent tokens, ascending."""
    counts = torch.zeros(target.config.vocab_size, dtype=torch.long)
    for generation in train:
        counts += torch.bincount(torch.tensor(generation.output_ids), minlength=len(counts))
    return counts.topk(min(count, len(counts))).indices.sort().values


def make_optimizer(drafter: Drafter) -> torch.optim.Optimizer:
    """AdamW; norms do not decay."""
    parameters = list(drafter.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))


def learning_rate(settings: Settings, round_index: int, rounds: int) -> float:
    """Warm-up, constant, linear cooldown: the end can be moved while the run goes on."""
    warmup = (round_index + 1) / (settings.warmup_rounds + 1)
    cooldown = (rounds - round_index) / max(1.0, settings.cooldown * rounds)
    return settings.lr * min(1.0, warmup, cooldown)


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Settings from the command line; every field is an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for setting in fields(Settings):
        flag = "--" + setting.name.replace("_", "-")
        if setting.name in ("generations", "target", "out"):
            parser.add_argument(flag, required=True)
        elif setting.name == "exclude":
            parser.add_argument(flag, nargs="*", default=())
        else:
            kind = str if setting.name == "init" else type(setting.default)
            parser.add_argument(flag, type=kind, default=setting.default)  # type: ignore[arg-type]
    values = vars(parser.parse_args(arguments))
    return Settings(**{**values, "exclude": tuple(values["exclude"])})


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and export to OUT/drafter; the log is OUT/log.jsonl."""
    settings = parse(arguments)
    try:
        run = Run(settings)
    except TrainingDataError as error:
        raise SystemExit(str(error)) from error
    with (run.out / "log.jsonl").open("a", encoding="utf-8") as log:
        for line in run.rounds():
            print(json.dumps(line), flush=True)
            log.write(json.dumps(line) + "\n")
            log.flush()
    run.export(run.out / "drafter")


if __name__ == "__main__":
    main()
