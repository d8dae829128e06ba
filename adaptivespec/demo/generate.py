"""Ask a running SGLang server for the target's own greedy answers: what a draft head is trained on.

    python -m adaptivespec.demo.generate --target DIR --url http://127.0.0.1:30000 --out generations.jsonl --count 1000

Answers are appended batch by batch; a second call asks only for what is missing.
"""

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from adaptivespec.demo.prompts import Prompt, docstrings, generated, questions, stubs


def encode(prompts: Iterable[Prompt], target: str) -> list[tuple[str, list[int]]]:
    """(kind, token ids) of each prompt in the target's chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    encoded = []
    for prompt in prompts:
        message = [{"role": "user", "content": prompt.question}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        encoded.append((prompt.kind, tokenizer(text, add_special_tokens=False)["input_ids"]))
    return encoded


def ask(url: str, prompts: Sequence[list[int]], max_new_tokens: int) -> list[list[int]]:
    """The server's greedy answers to a batch, as token ids; raises SystemExit where it cannot be reached."""
    body = {
        "input_ids": list(prompts),
        "sampling_params": {"temperature": 0.0, "max_new_tokens": max_new_tokens},
    }
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            answers: list[dict[str, Any]] = json.load(response)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"--url {url} refused the request: {error.code} {error.read().decode()[:300]}") from error
    except urllib.error.URLError as error:
        raise SystemExit(
            f"--url {url} cannot be reached ({error.reason}): expected a running SGLang server."
        ) from error
    return [answer["output_ids"] for answer in answers]


def answered(path: Path) -> set[tuple[int, ...]]:
    """The prompts that the file answers already; a last line cut by a kill is taken off."""
    if not path.exists():
        return set()
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return {tuple(json.loads(line)["prompt_ids"]) for line in whole.splitlines()}


def generate(prompts: Sequence[tuple[str, list[int]]], url: str, out: Path, batch: int, max_new_tokens: int) -> int:
    """Append the missing answers to `out`; returns how many output tokens were added."""
    done = answered(out)
    missing = [(kind, ids) for kind, ids in prompts if tuple(ids) not in done]
    added = 0
    with out.open("a", encoding="utf-8") as file:
        for start in range(0, len(missing), batch):
            part = missing[start : start + batch]
            for (kind, ids), output in zip(part, ask(url, [ids for _, ids in part], max_new_tokens), strict=True):
                file.write(json.dumps({"kind": kind, "prompt_ids": ids, "output_ids": output}) + "\n")
                added += len(output)
            file.flush()
            print(f"{start + len(part)}/{len(missing)} prompts, {added} tokens", flush=True)
    return added


def main(arguments: Sequence[str] | None = None) -> None:
    """Collect prompts from the sources named and generate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="the target's folder, for tokenizer and chat template")
    parser.add_argument("--url", required=True, help="a running SGLang server of the target")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--count", type=int, default=0, help="word problems to make up, with half as many sums")
    parser.add_argument("--stubs", type=int, default=0, help="functions with examples to make up, to be completed")
    parser.add_argument("--docstrings", nargs="*", default=(), help="stdlib or installed packages' names")
    parser.add_argument("--questions", nargs="*", type=Path, default=(), help="JSON Lines with question or problem")
    parser.add_argument("--max-new-tokens", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        prompts = generated(options.count, options.seed) if options.count else []
        prompts += stubs(options.stubs, options.seed)
        prompts += docstrings(options.docstrings, options.seed)
        prompts += [prompt for path in options.questions for prompt in questions(path)]
    except (OSError, KeyError, ValueError) as error:
        raise SystemExit(f"prompts cannot be had: {error}") from error
    generate(encode(prompts, options.target), options.url, options.out, options.batch, options.max_new_tokens)


if __name__ == "__main__":
    main()
