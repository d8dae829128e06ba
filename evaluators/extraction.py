"""Find the final answer in a worked solution: the last box or `#### N`, else what "the answer is", else the end.

python -m evaluators.grade answers.jsonl
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from evaluators.numerals import SPELLED

BOX = re.compile(r"\\(?:boxed|fbox|framebox)\b\s*")
HASH = re.compile(r"^[ \t]*#{3,}[ \t]*(?P<rest>\S.*)$", re.MULTILINE)
CALCULATION = re.compile(r"<<[^<>]*>>")
HASH_ANSWER = re.compile(
    r"^[^\w\s]*\s*[-+−]?[^\w\s]*\s*\d[^a-zA-Z]*(?:\s*(?!step)[a-zA-Z%/.*]+){0,3}[\s.*]*$", re.IGNORECASE
)
LEADING_NUMBER = re.compile(r"[^\w\s]*\s*[-+−]?[^\w\s]*\d")
# What a person adds to a number: "5 apples (not 6)"; but "5 (or 6)" takes the answer back.
REMARK = re.compile(r"\s+\((?!or\b)[a-z][^()]*\)")
# Boxes that are joined like this are one answer: "$\boxed{1}$ and $\boxed{-2}$", "x = \boxed{1}, x = \boxed{2}".
JOINT = re.compile(
    r"[\s$.]*(?:\\[)\]])?[\s$]*(?:,|;|&|and|or|,\s*and|,\s*or|\\text\{\s*(?:and|or)\s*\}|和|或|y|et|und|oder|o|ou)"
    r"[\s$]*(?:\\[(\[])?[\s$]*(?:[A-Za-z](?:_\{?\w+\}?)?\s*=\s*)?",
)
COPULA = r"(?:\s+(?:is|are|was|equals|should be|must be|would be|will be|comes to|of)\b)?"
MARK = re.compile(
    r"(?:\b(?:final\s+|correct\s+)?(?:answer|ans)\b(?:\s+to\s+[^.\n]{0,80}?)?"
    + COPULA
    + r"(?:\s*(?:therefore|thus|simply))?"
    r"|(?:最终)?答案(?:是|为|為)?|答(?=[:：])"
    r"|\b(?:respuesta|resposta|risposta|réponse|antwort|ответ|odpowiedź|cevap)\b(?:\s+(?:final|finale|correcta|correta))?"
    r"(?:\s+(?:es|é|è|est|ist|lautet)\b)?|答え(?:は)?|정답은?|답은?)"
    r"(?P<end>[*_\s]*[:：=]?[*_\s]*)",
    re.IGNORECASE,
)
COPULA_END = re.compile(
    r"(?:is|are|was|equals|be|to|of|therefore|thus|simply|es|é|è|est|ist|lautet|是|为|為|は|은)$", re.IGNORECASE
)
MATH = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(?!\s)([^$\n]+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
BOLD = re.compile(r"\*\*(?!\s)([^*\n]+?)\*\*|__([^_\n]+?)__")
GROUPED = r"(?:\d{1,3}(?:[,' \u00a0\u202f]\d{3})+(?!\d)|\d+)"
FRACTION = r"(?: \d+/\d+(?![\w-])|\s?/\s?\d+)?"  # behind a whole number, or its denominator; not in "5 1/2-cup scoops"
NUMBER = re.compile(
    rf"(?:(?<=[\s(\[{{=:$€£¥₹*~≈])|^)[-+−–](?=[$€£¥₹\d.])\s?[$€£¥₹]?\s?{GROUPED}?(?:\.\d+)?{FRACTION}"
    rf"|[$€£¥₹]?{GROUPED}(?:\.\d+)?{FRACTION}|(?<![\d\w])\.\d+"
)
# A number that has its line to itself, as an answer has that stands before its explanation.
ALONE = re.compile(r"\W*\d[\d,.]*\W*(?:[^\W\d_]+\W*){0,2}")
SENTENCE_END = re.compile(r"(?<=[\w)%$])\.\s+(?=[A-Z])")
MAX_MARK_LINES, MAX_MARK_CHARS = 3, 400


@dataclass(frozen=True)
class Found:
    """A final answer as it stands in the text."""

    text: str
    where: str
    """box, hash, marker, math, bold, number or prose."""


@dataclass(frozen=True)
class Box:
    """A box: its content and the place of the whole command."""

    content: str
    start: int
    end: int


def final_answer(text: str, *, numeric: bool) -> Found | None:
    """The answer that the text ends on, None where it gives none; `numeric`: only a number can be one."""
    boxes = list(find_boxes(text))
    if not boxes and re.search(BOX.pattern + r"\{", text):
        return None  # cut off in its box
    filled = [box for box in boxes if box.content.strip(" $.")]
    hashed = list(_hashes(text))
    if hashed and (not filled or hashed[-1][0] > filled[-1].start):
        return Found(REMARK.sub("", hashed[-1][1]) if numeric else hashed[-1][1], "hash")
    if filled:
        return Found(", ".join(_joint(filled, text)), "box")
    rest = text[boxes[-1].end :] if boxes else text  # an empty box takes back what was said before it
    return _marked(rest, numeric) or _last(rest, numeric)


def find_boxes(text: str) -> Iterator[Box]:
    """Every box that is closed, innermost content, in order; linear in the length of the text."""
    closing = _closing_braces(text)
    position = 0
    while match := BOX.search(text, position):
        start = match.end()
        position = start
        if text[start : start + 1] == "{":
            end = closing.get(start, None)
            if end is None:
                line = re.match(r"\{([^\n$]*?)\s*(?:\$|\\\)|\\\]|\n)", text[start : start + 300])
                if line and "{" not in line[1]:
                    yield Box(line[1], match.start(), start + line.end())
                continue
            content = text[start + 1 : end]
            if BOX.search(content):
                continue  # a box in a box: the inner one comes next
            yield Box(content, match.start(), end + 1)
            position = end + 1
        elif bare := re.match(r"[-+]?\d[\d,.]*|[A-Za-z]\b", text[start : start + 80]):
            yield Box(bare[0].rstrip(".,"), match.start(), start + bare.end())


def _closing_braces(text: str) -> dict[int, int]:
    pairs: dict[int, int] = {}
    open_braces: list[int] = []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match[0] == "{":
            open_braces.append(match.start())
        elif match[0] == "}" and open_braces:
            pairs[open_braces.pop()] = match.start()
    return pairs


def _joint(boxes: list[Box], text: str) -> list[str]:
    """The contents of the last box and of those that are joined to it, without repetitions."""
    group = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not JOINT.fullmatch(text, box.end, group[0].start):
            break
        group.insert(0, box)
    return list(dict.fromkeys(box.content.strip() for box in group))


def _hashes(text: str) -> Iterator[tuple[int, str]]:
    """Lines of `#### N`; the same marks with other text behind are headings."""
    for match in HASH.finditer(text):
        rest = CALCULATION.sub("", match["rest"]).strip()
        rest = re.sub(r"^(?:(?:the )?(?:final )?answer(?: is)?)\s*[:=]?\s*", "", rest, flags=re.IGNORECASE)
        last = not text[match.end() :].strip()
        if (HASH_ANSWER.match(rest) or (last and LEADING_NUMBER.match(rest))) and not re.match(r"\d+[.):]\s+\S", rest):
            yield match.start(), rest


def _marked(text: str, numeric: bool) -> Found | None:
    for match in reversed(list(MARK.finditer(text))):
        end = match["end"]
        said = match[0][: len(match[0]) - len(end)]
        if not (COPULA_END.search(said) or ":" in end or "：" in end or "=" in end or "\n" in end):
            continue
        rest = text[match.end() :].strip()
        lines = [line for line in rest.split("\n") if line.strip()]
        if not lines:
            continue
        if len(lines) > MAX_MARK_LINES or len(rest) > MAX_MARK_CHARS:
            if not ALONE.fullmatch(lines[0]):
                continue  # a heading above the working, or a word in passing
            rest = lines[0]
        if found := (_number_in(rest) if numeric else _formula_in(rest)):
            return Found(found, "marker")
    return None


def _number_in(text: str) -> str | None:
    """The number that a sentence gives: after its last equals sign, else its first."""
    sentence = re.split(r"(?<=[^\d\s])\.\s|\.\s(?=[A-Z])|\n|(?<=\s)\((?=[a-z])", text.strip())[0]
    sentence = re.sub(r"(?<=\d)(?:\\[;,! ]|,\\!|\{,\})(?=\d{3})", ",", sentence)
    sentence = re.sub(r"\\[;,! ]", " ", sentence)
    sentence = re.sub(r"[{}\\*]", "", sentence)
    sentence = re.sub(r"\b(?:negative|minus)\s+(?=[$\d])", "-", sentence, flags=re.IGNORECASE)
    if "=" in sentence:
        sentence = sentence.rpartition("=")[2]
    numbers = [match[0] for match in NUMBER.finditer(CALCULATION.sub("", sentence)) if re.search(r"\d", match[0])]
    if numbers:
        return numbers[0]
    return next((word for word in re.findall(r"[a-z-]+", sentence.lower()) if word in SPELLED), None)


def _formula_in(text: str) -> str | None:
    stripped = text.lstrip("*_ \n")
    for pattern in (MATH, BOLD):
        if match := pattern.match(stripped):
            return _content(match)
    line = stripped.split("\n")[0]
    if formulas := list(MATH.finditer(line)):
        return _content(formulas[0]) if len(formulas) == 1 else line.strip(" .*")
    return re.split(r"\.\s", line)[0].strip(" .*") or None


def _last(text: str, numeric: bool) -> Found | None:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return None
    return _last_number(lines) if numeric else _last_formula(text, lines)


def _last_number(lines: list[str]) -> Found | None:
    for line in reversed(lines):
        for match in reversed(list(BOLD.finditer(line))):
            if number := _number_in(_content(match)):
                return Found(number, "bold")
        plain = re.sub(r"\((?!\s*[-\d.,]+\s*\))[^()]*\)", "", CALCULATION.sub("", line)).replace("*", "")
        for sentence in reversed(SENTENCE_END.split(plain)):  # "17 * 40 = 680. So the total is 694." says 694
            if "=" in sentence and (number := _number_in(sentence.rpartition("=")[2])):
                return Found(number, "number")
            numbers = [match[0] for match in NUMBER.finditer(sentence) if re.search(r"\d", match[0])]
            if numbers:
                return Found(numbers[-1], "number")
    return None


def _last_formula(text: str, lines: list[str]) -> Found | None:
    tail = "\n".join(lines[-3:])
    for pattern, where in ((MATH, "math"), (BOLD, "bold")):
        if matches := list(pattern.finditer(tail)):
            return Found(_content(matches[-1]), where)
    if re.search(r"[^\W\d_]{2,}", lines[-1]) and not re.search(r"\d", lines[-1]):
        return Found(lines[-1].strip(), "prose")
    return _last_number(lines[-1:]) or Found(lines[-1].strip(), "prose")


def _content(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()
