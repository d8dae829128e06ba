"""The settings of a training run, and how the command line spells them: `--` and the field's name with hyphens."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Settings:
    """Everything that shapes a run; kept beside its checkpoints."""

    generations: str
    target: str
    out: str
    init: str | None = None
    """A head to start from, with its draft vocabulary if that has `draft_vocab` tokens; none: the target's last layer."""
    exclude: tuple[str, ...] = ()
    """JSON Lines with a `question` each: prompts equal or near to one are left out, besides the packaged problems'."""
    tokens: int = 1_000_000
    """Unique output tokens to train on; may be changed when a run resumes."""
    draft_vocab: int = 4096
    depths: int = 5
    """Drafts unrolled from every position; may be changed when a run resumes: the last rounds can be the deeper ones."""
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


def parse(description: str | None, arguments: Sequence[str] | None = None) -> Settings:
    """Settings from the command line; every field is an option."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for setting in fields(Settings):
        flag = "--" + setting.name.replace("_", "-")
        if setting.name in ("generations", "target", "out"):
            parser.add_argument(flag, required=True)
        elif setting.name == "exclude":
            parser.add_argument(flag, nargs="*", default=())
        else:
            kind = str if setting.name == "init" else type(setting.default)
            parser.add_argument(flag, type=kind, default=setting.default)
    values = vars(parser.parse_args(arguments))
    return Settings(**{**values, "exclude": tuple(values["exclude"])})
