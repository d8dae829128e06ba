"""The paper-compatible graders misjudge as the old harness did."""

import pytest

from evaluators import specforge
from evaluators.thinking import strip_thinking


@pytest.mark.parametrize(
    ("output", "gold", "correct"),
    [
        ("She makes 18 dollars.\n#### 18", "18", True),
        ("The answer is 70,000.", "70000", True),
        ("The answer is 10.", "-10", True),  # the sign is lost on both sides
        ("It costs $18.50.", "50", True),  # so is the point
        ("The answer is $18.00", "18", False),
        ("the answer is 18 (not 20)", "18", False),
        ("none", "18", False),
    ],
)
def test_gsm8k_takes_the_last_run_of_digits(output: str, gold: str, correct: bool) -> None:
    assert specforge.gsm8k(output, gold)[0] is correct


@pytest.mark.parametrize(
    ("output", "gold", "correct", "extracted"),
    [
        (r"\boxed{42}", "42", True, "42"),
        (r"\boxed{\frac{14}{3}}", r"\frac{14}{3}", False, r"\frac{14"),  # cut at the first closing brace
        (r"Half is \boxed{2}, so \boxed{3}", "3", False, "2"),  # the first box counts
        (r"\boxed{Even}", "even", True, "Even"),
        (r"\boxed{0.5000000001}", "0.5", True, "0.5000000001"),
        (r"\boxed 7", "7", True, "7"),
        ("The answer is 12. Check: 5", "12", True, "12"),
        ("So x = 12.", "12", True, "12"),
        ("We count 3 and 4", "4", True, "4"),
        ("nothing", "4", False, None),
    ],
)
def test_math500_takes_the_first_box_or_a_last_number(
    output: str, gold: str, correct: bool, extracted: str | None
) -> None:
    assert specforge.math500(output, gold) == (correct, extracted)


PROMPT = 'def add(x, y):\n    """Add."""\n'


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("```python\ndef add(x, y):\n    return x + y\n```", "def add(x, y):\n    return x + y"),
        ("```\ndef add(x, y):\n    return 1\n```\n```python\nno\n```", "def add(x, y):\n    return 1"),
        ("Sure!\ndef add(x, y):\n    return 1\nDone.", "def add(x, y):\n    return 1"),
        ("```python\ndef sub(x, y):\n    return 1\n```", f"{PROMPT}\ndef sub(x, y):\n    return 1"),
        ("    return x + y\n", f"{PROMPT}\nreturn x + y"),  # stripped: a plain continuation never runs
        ("```py\nx = 1\n```", f"{PROMPT}\n```py\nx = 1\n```"),  # another tag is no fence
    ],
)
def test_humaneval_takes_the_first_closed_fence_or_function(output: str, code: str) -> None:
    assert specforge.humaneval_code(output, PROMPT, "add") == code


@pytest.mark.parametrize(
    ("output", "graded"),
    [
        ("plain", "plain"),
        ("<think>a\n\nb</think>#### 5", "#### 5"),
        ("a\n</think>\n\\boxed{5}", "\n\\boxed{5}"),  # the template had opened it
        ("<think>so \\boxed{5}", ""),
        ("Answer: 5\n<think>or 6?", "Answer: 5\n"),
        ("<think>a</think><think>b</think>5", "5"),
        ("<thinking>a</thinking>5", "5"),
        ("[THINK]a[/THINK]5", "5"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>5", "5"),
    ],
)
def test_reasoning_is_not_graded(output: str, graded: str) -> None:
    assert strip_thinking(output) == graded


def test_reasoning_that_the_prompt_opened_and_nothing_closed_is_no_answer() -> None:
    assert strip_thinking("so \\boxed{5}", opened=True) == ""
    assert strip_thinking("a</think>5", opened=True) == "5"
