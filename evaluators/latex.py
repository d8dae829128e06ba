"""Put a mathematical answer into one spelling: Unicode, LaTeX shorthands, spacing, separators.

python -m evaluators.grade answers.jsonl
"""

import re
import unicodedata

GREEK = {
    "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "φ": r"\phi ",
    "ω": r"\omega ", "μ": r"\mu ", "σ": r"\sigma ",
}  # fmt: skip
SYMBOLS = GREEK | {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": "/", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "±": r"\pm ", "°": r"^\circ ", "º": r"^\circ ", "…": r"\ldots ", "≈": r"\approx ", "⁄": "/", "∕": "/", "′": "'",
    "“": '"', "”": '"', "’": "'", "‘": "'", "⟨": r"\langle ", "⟩": r"\rangle ", "∅": r"\emptyset ", "，": ",",
    "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u200a": " ", "\u200b": "", "\ufeff": "", "\u2060": "",
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
FRACTIONS = {"½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45",
             "⅙": "16", "⅚": "56", "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78"}  # fmt: skip

TEXT_COMMANDS = "text|mbox|hbox|textrm|textbf|textit|textsf|textup|textnormal|mathrm|mathsf|operatorname"
# Each pair is (what is written, the one spelling).
SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (rf"\\(?:{TEXT_COMMANDS})\s*\{{\s*([ie])\s*\}}", r"\1"),
        (rf"\\(?:{TEXT_COMMANDS})\s*\{{\s*(?:-|negative|minus)\s*\}}|\b(?:negative|minus)\s+(?=\d)", "-"),
        (rf"\\(?:{TEXT_COMMANDS})\s*\*?\s*(?=\{{)", r"\\text"),
        (r"\\(?:mathbf|boldsymbol|bm|mathit|mathcal|bf|it|rm)(?![A-Za-z])\s*", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|left|right|[bB]igg?[lrm]?|middle)(?![A-Za-z])\s*", ""),
        (r"(?<!\\)\\!\s*", ""),
        (r"(?<=\d)(?:\{,\}|\\,|\\ |\\;|\\:)\s*(?=\d{3}(?!\d))", ","),
        (r"\{,\}", ","),
        (r"(?<!\\)\\(?:[,;: ]|quad|qquad|thinspace|medspace|enspace|hspace\{[^{}]*\})(?![A-Za-z])|~", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\{\s*([^{}\\]+?)\s*\\choose\s*([^{}\\]+?)\s*\}", r"\\binom{\1}{\2}"),
        (r"\\(?:leq|leqslant|le)(?![A-Za-z])", r"\\le "),
        (r"\\(?:geq|geqslant|ge)(?![A-Za-z])", r"\\ge "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq(?![A-Za-z])", r"\\ne "),
        (r"\\(?:dots|cdots|dotsc|dotsb)(?![A-Za-z])|(?<!\.)\.\.\.(?!\.)", r"\\ldots "),
        (r"\\(?:lbrace|\{)", r"\\{"),
        (r"\\(?:rbrace|\})", r"\\}"),
        (r"\\(?:lbrack)(?![A-Za-z])", "["),
        (r"\\(?:rbrack)(?![A-Za-z])", "]"),
        (r"\\[lr]vert(?![A-Za-z])|\\mid(?![A-Za-z])|\\vert(?![A-Za-z])", "|"),
        (r"\\(?:degree|degrees)(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])|\^\s*\{?\s*o\s*\}?(?![A-Za-z])", r"^\\circ "),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
        (r"\\frac\s*\{\s*\\text\{([^{}]*)\}\s*\}\s*\{\s*\\text\{([^{}]*)\}\s*\}", r"\\text{\1/\2}"),
        (r"\\log\s*_\s*\{?\s*e\s*\}?(?![A-Za-z])", r"\\ln "),
        (r"\\lg(?![A-Za-z])", r"\\log_{10} "),
        (r"\\(?:arc|a)(sin|cos|tan)(?![A-Za-z])", r"\\arc\1"),
        (r"\*\*", "^"),
        (r"\*", r"\\cdot "),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        (r"\\sqrt\s*(\d|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])(sqrt|sin|cos|tan|ln|log|pi|infty)(?=\s*[({\d]|\b)", r"\\\1"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\^\s*-\s*(\d+)", r"^{-\1}"),
        (r"\^\s*(\d{2,})", r"^{\1}"),
        (r"\\(?:boxed|fbox)\b", ""),
        (r"\s+", " "),
    ]
]  # fmt: skip


def tidy(text: str) -> str:
    """The answer in one spelling, without the marks around it."""
    text = _ascii(text)
    text = _strip_marks(text)
    for pattern, replacement in SPELLINGS:
        text = pattern.sub(replacement, text)
    return _strip_marks(text)


def _ascii(text: str) -> str:
    text = re.sub("√\\s*\\(([^()]*)\\)", r"\\sqrt{\1}", text)
    text = re.sub("√\\s*([\\w.]+)", r"\\sqrt{\1}", text)
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda match: "^{" + match[0].translate(SUPERSCRIPTS) + "}", text)
    for sign, parts in FRACTIONS.items():
        text = text.replace(sign, rf"\frac{{{parts[0]}}}{{{parts[1]}}}")
    for sign, spelling in SYMBOLS.items():
        text = text.replace(sign, spelling)
    return unicodedata.normalize("NFKC", text)


# A factorial, and LaTeX's spaces.
PUNCTUATION_KEPT = re.compile(r"\\[!,;:]$|[\d)}]!$")


def _strip_marks(text: str) -> str:
    """Take off math delimiters, emphasis, quotes and closing punctuation."""
    while True:
        bare = text.strip().strip('*`"').strip()
        if not PUNCTUATION_KEPT.search(bare):
            bare = re.sub(r"(?<!\\)[.,;:!?。，]+$", "", bare)
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("__", "__")):
            inner = bare[len(left) : len(bare) - len(right)]
            if len(bare) > len(left + right) and bare.startswith(left) and bare.endswith(right) and left not in inner:
                bare = inner
        if bare == text:
            return bare
        text = bare


def split_top(text: str, separators: str) -> list[str]:
    """Split at a pattern where it stands outside of all brackets; brackets of an interval need not match."""
    pieces, depth, start = [], 0, 0
    for match in re.finditer(rf"(?P<open>\\\{{|[(\[{{])|(?P<close>\\\}}|[)\]}}])|(?P<split>{separators})", text):
        if match["open"]:
            depth += 1
        elif match["close"]:
            depth = max(0, depth - 1)
        elif depth == 0:
            pieces.append(text[start : match.start()])
            start = match.end()
    return [piece.strip() for piece in [*pieces, text[start:]]]


def has_outer(text: str, left: str, right: str) -> bool:
    """Whether the brackets at the two ends belong together."""
    if not (text.startswith(left) and text.endswith(right) and len(text) > len(left + right)):
        return False
    depth = 0
    for match in re.finditer(r"\\[{}]|[()\[\]{}]", text):
        depth += 1 if match[0].endswith(("(", "[", "{")) else -1
        if depth == 0:
            return match.end() == len(text)
    return False
