"""Units, currencies and words for large numbers around a number.

python -m evaluators.grade answers.jsonl
"""

import re
from fractions import Fraction

SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "dozen": 12, "k": 10**3}
SYNONYMS = {
    "dollar": "$ usd us$ dollars bucks",
    "euro": "€ eur euros",
    "pound": "£ gbp pounds lb lbs",
    "cent": "¢ cents",
    "percent": "% percentage percents pct",
    "degree": "degrees deg",
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres cms",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres kms",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards",
    "mi": "mile miles",
    "g": "gram grams",
    "kg": "kilogram kilograms kgs",
    "oz": "ounce ounces",
    "s": "second seconds sec secs",
    "min": "minute minutes mins",
    "h": "hour hours hr hrs",
    "l": "liter liters litre litres",
    "ml": "milliliter milliliters millilitre millilitres",
    "unit": "units",
    "mi/h": "mph miles/hour miles_per_hour",
    "km/h": "kph kmh kilometers_per_hour kilometres_per_hour",
}
CANONICAL = {synonym.replace("_", " "): unit for unit, synonyms in SYNONYMS.items() for synonym in synonyms.split()}
CURRENCY = re.compile(
    r"^(?P<sign>[-+]?)\s*(?:\\text\{\s*)?(?P<unit>\\?\$|US\$|USD|€|£|¥|₹|EUR|GBP|Rs\.?)\s*\}?\s*(?=[-+]?[\d.\\])"
)
PERCENT = re.compile(r"\s*\\?%\s*$")
DEGREES = re.compile(r"\s*\^\\circ\s*(?:[CF]|\\text\{\s*[CF]\s*\})?\s*$")
TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
WORD = r"[^\W\d_][^\W\d_.'/-]*"
POWER = r"\s*(?:\^\s*\{?(?P<power>[23])\}?)?\s*$"
TEXT_UNIT = re.compile(r"\s*\\text\{(?P<words>[^{}]*)\}" + POWER)
PLAIN_UNIT = re.compile(
    rf"(?P<bare>.*[\d)}}])(?P<space>\s*/?\s*)(?P<words>{WORD}(?:[ /]+{WORD}){{0,4}}\.?|\\?\$|[¢元円원€£₽₹])" + POWER
)
NO_UNIT = re.compile(r"\b(?:and|or|pi|sin|cos|tan|ln|log)\b")


def split_unit(text: str) -> tuple[str, str, Fraction]:
    """(the bare number or formula, its unit in one spelling, the factor of words such as thousand)."""
    unit, scale = "", Fraction(1)
    text = text.strip()
    if match := CURRENCY.match(text):
        unit, text = canonical(match["unit"].lstrip("\\")), match["sign"] + text[match.end() :]
    for pattern, name in ((PERCENT, "percent"), (DEGREES, "degree")):
        if (match := pattern.search(text)) and match.start() > 0 and not TRIGONOMETRY.search(text):
            return text[: match.start()].strip(), name, scale
    if (match := TEXT_UNIT.search(text)) and match.start() > 0 and not NO_UNIT.search(match["words"]):
        text, words, power = text[: match.start()].strip(), match["words"], match["power"]
    elif (match := PLAIN_UNIT.fullmatch(text)) and _is_unit(match["bare"], match["words"], match["space"]):
        text, words, power = match["bare"].strip(), match["words"], match["power"]
    else:
        return text, unit, scale
    text, words = text.removesuffix("/").strip(), words.strip(" .")
    first, _, others = words.partition(" ")
    if first.lower() in SCALES:
        scale, words = Fraction(SCALES[first.lower()]), others
    if match := re.search(r"\^\{?([23])\}?$", words):
        words, power = words[: match.start()], match[1]
    text = DEGREES.sub("", text)
    return text, canonical(words.lstrip("\\"), power) or unit, scale


def canonical(words: str, power: str | None = None) -> str:
    """One spelling of a unit: cm^2 for "square centimeters"."""
    words = " ".join(words.lower().replace(".", "").split())
    for prefix, exponent in (("square ", "2"), ("sq ", "2"), ("cubic ", "3"), ("cu ", "3")):
        if words.startswith(prefix):
            words, power = words.removeprefix(prefix), exponent
    words = CANONICAL.get(words, words)
    return f"{words}^{power}" if power else words


def _is_unit(bare: str, words: str, space: str) -> bool:
    """Letters behind a number are a unit unless they could be symbols, as in 2k or 15x y."""
    if re.search(r"(?<![\\A-Za-z])[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", bare)):
        return False
    if words.lower() == "k" and not space:
        return bool(re.fullmatch(r"[-+\d.,]+", bare.strip()))
    if len(words) == 1 and words.isalpha() and words.isascii():
        return bool(space) and words in "mgshlLNJWVA"
    return not NO_UNIT.search(words)
