"""How the paper's harness of the time judges: SpecForge a6b6b02, re-implemented from its description (METHOD.md).

It misjudges many answers; its verdicts stand beside the right ones, so that the items that flip can be listed.

    python -m evaluators.grade answers.jsonl
"""

import re

NUMBER = r"-?\d+(?:\.\d+)?"
FENCE = re.compile(r"```(?:python)?[ \t]*\n(.*?)```", re.DOTALL)
FUNCTION = re.compile(r"^def .*?(?=^\S|\Z)", re.DOTALL | re.MULTILINE)


def gsm8k(output: str, gold: str) -> tuple[bool, str | None]:
    """(correct, extracted): the last run of digits, commas dropped; sign and decimals are lost on both sides."""
    answer, expected = _last_digits(output), _last_digits(gold)
    return answer is not None and answer == expected, None if answer is None else str(answer)


def _last_digits(text: str) -> int | None:
    runs = re.findall(r"\d+", text.replace(",", ""))
    return int(runs[-1][:4000]) if runs else None  # Python refuses to read longer ones


def math500(output: str, gold: str) -> tuple[bool, str | None]:
    """(correct, extracted): the first box up to its first closing brace, else a last number, as text or as floats."""
    answer = _math_answer(output)
    if answer is None:
        return False, None
    same_text = answer.strip().lower() == gold.strip().lower()
    return same_text or _same_floats(answer, gold), answer


def _math_answer(output: str) -> str | None:
    if box := re.search(r"\\boxed\{([^}]*)\}", output):
        return box[1]
    if word := re.search(r"\\boxed\s+(\S+)", output):
        return word[1]
    for pattern in (
        rf"answer\b\D*?({NUMBER})",
        rf"(?:\bis|\bequals|=)\s*\$?({NUMBER})\s*\.?\s*$",
        rf"({NUMBER})",
    ):
        if numbers := re.findall(pattern, output, re.IGNORECASE):
            return str(numbers[-1])
    return None


def _same_floats(first: str, second: str) -> bool:
    try:
        return abs(float(first) - float(second)) < 1e-6
    except ValueError:
        return False


def humaneval_code(output: str, prompt: str, entry_point: str) -> str:
    """The code that it runs: the answer's, behind the prompt where it does not define the function."""
    code = _code(output)
    return code if re.search(rf"^def\s+{re.escape(entry_point)}\b", code, re.MULTILINE) else f"{prompt}\n{code}"


def humaneval_script(code: str, entry_point: str, test: str, *, legacy: bool) -> str:
    """The script that it runs; any exception is wrong.

    `legacy`: before mid-July 2026 the test's `check` was defined and never called.
    """
    return f"{code}\n\n{test}\n" + ("" if legacy else f"\ncheck({entry_point})\n")


def _code(output: str) -> str:
    """The first closed fence tagged python or untagged, else the first function, else everything."""
    if fence := FENCE.search(output):
        return fence[1].strip()
    if function := FUNCTION.search(output):
        return function[0].strip()
    return output.strip()
