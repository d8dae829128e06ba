"""What the report's promotion inspector shows: generated text with its promoted tokens marked, next to vanilla's.

    for cell in inspected(study, per_cell=40): cell["items"][0]["parts"]

Token texts come from the target's own `tokenizer.json`, found through the recorded server command or `--tokenizer FOLDER`; where it
is out of reach the promotions are listed by token id below the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.arms import Arm, Missing, Study
from analysis.checked import Checked
from analysis.records import Record
from analysis.summary import has_recovery


@lru_cache(maxsize=4)
def load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer; None where the folder has none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def tokenizer_of(record: Record, folder: Path | None) -> Any:
    """The tokenizer of a record's target, where it can be found on this machine."""
    if folder:
        return load_tokenizer(folder)
    for start in record.provenance.get("server_starts") or []:
        command = (start.get("command") or "").split()
        for flag, value in pairwise(command):
            if flag == "--model-path" and (found := load_tokenizer(Path(value))):
                return found
    return None


def inspected(study: Study, per_cell: int, tokenizer_folder: Path | None = None) -> list[dict[str, Any]]:
    """Return the inspector's cells: every traced arm with a lossy rule."""
    arms = [arm for arm in study.arms if has_recovery(arm) and arm.record.cell["trace"]]
    return [inspect_arm(study, arm, per_cell, tokenizer_of(arm.record, tokenizer_folder)) for arm in arms]


def inspect_arm(study: Study, arm: Arm, per_cell: int, tokenizer: Any) -> dict[str, Any]:
    """Choose an arm's items (flipped grades first, then most promotions) and cut their texts at promotions."""
    cell = arm.cells[0]
    bases = {name: study.reference(arm, name) for name in ("vanilla", "eagle3")}
    judge, vanilla = (
        None if isinstance(base, Missing) else base.cells[0] for base in (bases["eagle3"], bases["vanilla"])
    )
    judge = judge or vanilla
    flipped = flips(cell, judge)
    promotions = cell.frame["promotions"].fillna(0)
    chosen = sorted(cell.frame.index, key=lambda item: (item not in flipped, -promotions[item]))[:per_cell]
    vanilla_texts = texts(vanilla, chosen)
    lines = {line["item"]: line for line in cell.record.generations() if line["item"] in set(chosen)}
    items = [
        {
            "item": item,
            "flip": flipped.get(item, ""),
            "correct": bool(cell.frame["correct"].get(item)),
            "promotions": int(promotions[item]),
            "parts": parts(lines[item], tokenizer),
            "vanilla": vanilla_texts.get(item),
        }
        for item in chosen
    ]
    return {"name": arm.record.place, "n_items": len(cell.frame), "n_flipped": len(flipped), "items": items}


def flips(cell: Checked, reference: Checked | None) -> dict[str, str]:
    """Items whose grade is not the reference arm's: `lost` or `won`."""
    if reference is None:
        return {}
    common = cell.frame.index.intersection(reference.frame.index)
    ours, theirs = (one.frame["correct"].loc[common].eq(True) for one in (cell, reference))
    return {str(item): "won" if ours[item] else "lost" for item in common[ours != theirs]}


def texts(cell: Checked | None, items: Sequence[str]) -> dict[str, str]:
    """Outputs by item."""
    wanted = set(items)
    return {line["item"]: line["text"] for line in cell.record.generations() if line["item"] in wanted} if cell else {}


def parts(line: dict[str, Any], tokenizer: Any) -> list[Any]:
    """Cut an output at its promotions: texts, and {"text", "target", "margin"} for each promoted token."""
    promoted = [one for step in line["trace"] or [] for one in step["promoted"]]
    if tokenizer is None:
        listed = [{**token_part(None, one), "text": f" [{one['token']} at {one['position']}]"} for one in promoted]
        return [line["text"], *listed]
    ids, cut, found = line["output_ids"], 0, []
    for one in sorted(promoted, key=lambda entry: entry["position"]):
        found += [decode(tokenizer, ids[cut : one["position"]]), token_part(tokenizer, one)]
        cut = one["position"] + 1
    return [part for part in [*found, decode(tokenizer, ids[cut:])] if part]


def token_part(tokenizer: Any, one: dict[str, Any]) -> dict[str, Any]:
    """One promoted token, what the target would have chosen, and the margin (null for the window rule)."""
    text, target = (decode(tokenizer, [one[name]]) or f"<token {one[name]}>" for name in ("token", "target_token"))
    return {"text": text, "target": target, "margin": one["margin"]}


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Text of some tokens, special ones left out; nothing without a tokenizer."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True)) if tokenizer else ""
