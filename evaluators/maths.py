"""Judge the final answer of a worked solution against the gold one.

python -m evaluators.grade answers.jsonl
"""

import re

from evaluators.equality import equal
from evaluators.extraction import Found, final_answer
from evaluators.latex import tidy
from evaluators.reading import plain_words, read
from evaluators.values import NotMathsError, Value, Words

PROSE = re.compile(r"(?:\\text\{[^{}]*\}|[^\W\d_]{2,}|[\s,.'()-])+")
HEDGES = re.compile(r"\b(?:not|or|and|between|at least|at most|more|less|than|approximately|about)\b")


def judge(text: str, gold: str, *, numeric: bool) -> tuple[bool, str | None, str]:
    """(correct, the answer as extracted, why); `numeric`: the gold answer is a bare number (GSM8K, sums)."""
    found = final_answer(text, numeric=numeric)
    if found is None:
        return False, None, "no answer"
    expected = gold_value(gold)
    try:
        if isinstance(expected, Words):
            return _verdict(_same_words(expected, found), found)
        return _verdict(equal(expected, read_answer(found.text)), found)
    except NotMathsError as error:
        return False, found.text, f"unreadable: {error}"


def _verdict(correct: bool, found: Found) -> tuple[bool, str, str]:
    return correct, found.text, "equal" if correct else "different"


def gold_value(gold: str) -> Value:
    """Read a gold answer; what cannot be read counts as words."""
    try:
        return read(gold)
    except NotMathsError:
        return Words(plain_words(tidy(gold)))


def read_answer(text: str) -> Value:
    """Read an answer, with words around a single number left out."""
    try:
        return read(text)
    except NotMathsError:
        spelt = tidy(text)
        numbers = re.findall(r"(?<![\w.])[-+]?\\?\$?\d[\d,]*(?:\.\d+)?(?![\w{^_])", spelt)
        words = re.sub(r"(?<![\w.])[-+]?\\?\$?\d[\d,]*(?:\.\d+)?", " ", spelt)
        if len(numbers) != 1 or not PROSE.fullmatch(words) or HEDGES.search(words.lower()):
            raise
        return read(numbers[0])


def _same_words(expected: Words, found: Found) -> bool:
    if plain_words(tidy(found.text)).rstrip("s") == expected.words.rstrip("s"):
        return True
    if len(expected.words) == 1:  # a choice, perhaps with its text behind it
        return bool(re.match(rf"\W*(?:text\{{)?\W*{expected.words}\s*(?:[).:]|[\W]*$)", tidy(found.text).lower()))
    said = re.sub(r"\\text|[{}.*$]", " ", found.text.lower()).strip()
    return bool(re.search(rf"\b(?:is|are|was|be)\s+(?:(?:the|an?)\s+)?{re.escape(expected.words)}$", said))
