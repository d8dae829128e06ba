"""Train an EAGLE-3 draft head for a target on the target's own answers; stops and resumes anywhere.

    python -m adaptivespec.demo.train --generations FILE --target DIR --out DIR

A round trains on one new shard of the file and on `replay` earlier ones; what a kill interrupts is repeated from the
round's start, so that the result is that of an uninterrupted run. docs/training.md tells the whole way.
"""

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adaptivespec.demo.drafter import Drafter, init_from_target, load_drafter, save_drafter, with_vocabulary
from adaptivespec.demo.evaluate import evaluate
from adaptivespec.demo.features import Featured, load_or_compute, load_target, product_dtype, target_fingerprint
from adaptivespec.demo.sequences import (
    Generation,
    TrainingDataError,
    drop_near,
    fingerprint,
    read_generations,
    split_held_out,
)
from adaptivespec.demo.settings import Settings, parse
from adaptivespec.demo.shards import excluded_questions, make_batches, make_shards
from adaptivespec.demo.unroll import Frozen, distillation_loss, pack


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
        self.round = 0
        self.seconds = 0.0
        self._resume()
        self.frozen = self._borrow()

    def _generations(self) -> list[Generation]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.settings.target)
        generations = read_generations(Path(self.settings.generations))
        kept = drop_near(generations, excluded_questions(self.settings.exclude), tokenizer.decode)
        self.dropped = len(generations) - len(kept)
        return kept

    def _first_drafter(self, train: Sequence[Generation]) -> Drafter:
        start = load_drafter(Path(self.settings.init), self.target) if self.settings.init else None
        if start is not None and len(start.d2t) == self.settings.draft_vocab:
            return start
        d2t = frequent_tokens(train, self.target, self.settings.draft_vocab)
        if start is not None:
            return with_vocabulary(start, self.target, d2t)
        return init_from_target(self.target, d2t, self.settings.seed)

    def _borrow(self) -> Frozen:
        longest = max(len(g.ids) for g in self.held_out + [g for shard in self.shards for g in shard])
        return Frozen.of(self.target, self.drafter.d2t, longest + self.settings.depths + 8)

    @property
    def checkpoint(self) -> Path:
        """Head, optimizer and place of the last whole round."""
        return self.out / "checkpoint.pt"

    def _resume(self) -> None:
        if not self.checkpoint.exists():
            self._save()
            return
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        identity = self._identity(state["round"])
        changed = {k for k, v in identity.items() if state["identity"].get(k) != v}
        if changed:
            raise TrainingDataError(
                f"{self.out} holds a run with other settings ({', '.join(sorted(changed))}): "
                "repeat them to resume, or choose another --out."
            )
        self.drafter.load_state_dict(state["drafter"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.round, self.seconds = state["round"], state["seconds"]

    def _identity(self, rounds: int) -> dict[str, Any]:
        """What must not change when a run resumes after `rounds`: settings, data trained on and held out, the target."""
        free = ("tokens", "depths", "out", "device", "evaluate_every", "generations", "target", "init", "exclude")
        data = fingerprint([g for shard in (*self.shards[:rounds], self.held_out) for g in shard])
        kept = {k: v for k, v in asdict(self.settings).items() if k not in free}
        return {**kept, "data": data, "target": target_fingerprint(self.target)}

    def _save(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "identity": self._identity(self.round),
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
        return load_or_compute(self.target, self.shards[index], self.out / "features")

    def rounds(self) -> Iterator[dict[str, Any]]:
        """Train round by round to the end; yields each round's line of the log, the checkpoint already written."""
        held_out = load_or_compute(self.target, self.held_out, self.out / "features")
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
        half = product_dtype(self.device) == torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
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


def frequent_tokens(train: Sequence[Generation], target: Any, count: int) -> Tensor:
    """[count]: the outputs' most frequent tokens, ascending; every kind of prompt weighs alike, however many answers it has."""
    vocabulary = target.config.vocab_size
    counts: dict[str, Tensor] = defaultdict(lambda: torch.zeros(vocabulary, dtype=torch.float64))
    for generation in train:
        counts[generation.kind] += torch.bincount(torch.tensor(generation.output_ids), minlength=vocabulary)
    shares = torch.stack([kind / kind.sum() for kind in counts.values()]).sum(0)
    return shares.topk(min(count, vocabulary)).indices.sort().values


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and export to OUT/drafter; the log is OUT/log.jsonl."""
    settings = parse(__doc__, arguments)
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
