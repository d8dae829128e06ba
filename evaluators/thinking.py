"""Leave a model's reasoning out of what is graded.

An answer that stands only in a reasoning block that was cut off is no answer.

    python -m evaluators.grade answers.jsonl
"""

import re

NAMES = r"(?:seed:)?(?:think|thinking|thought|thoughts|reasoning|reflection|analysis|scratchpad)"
OPEN = re.compile(
    rf"<{NAMES}>|\[THINK\]|◁think▷|<\|begin_of_thought\|>|<\|channel\|>(?:analysis|commentary)[^<]*<\|message\|>",
    re.IGNORECASE,
)
CLOSE = re.compile(
    rf"</{NAMES}>|\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|channel\|>final[^<]*<\|message\|>", re.IGNORECASE
)


def strip_thinking(output: str, *, opened: bool = False) -> str:
    """The output without its reasoning; `opened` says that the prompt ended inside a reasoning block."""
    if closes := list(CLOSE.finditer(output)):
        output = output[closes[-1].end() :]
    elif opened:
        return ""
    unclosed = OPEN.search(output)
    return output[: unclosed.start()] if unclosed else output
