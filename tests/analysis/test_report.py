"""The page in a real headless Chromium: it draws, logs no error, asks the network for nothing, and its inspector works."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from analysis import report
from analysis.arms import Study
from analysis.inspector import inspected, parts
from tests.analysis.synthetic import Item, Spec, write_cell

ITEMS = [Item(tokens=61, steps=20, latency_s=1 + place / 10, correct=place % 3 > 0, promotions=2) for place in range(9)]
EVIL = "</script><script>throw new Error('a model wrote this')</script>"
# Drives the page as a person would, and leaves what it saw where --dump-dom shows it.
DRIVER = """
<script>
const seen = {errors: window.pageErrors, width: innerWidth, overflow: document.documentElement.scrollWidth - innerWidth};
const pick = (id, value) => { const one = document.getElementById(id); one.value = value; one.dispatchEvent(new Event("change")); };
const ours = document.getElementById("ours");
seen.cells = document.getElementById("cell").options.length;
seen.all = document.getElementById("item").options.length;
seen.marks = ours.querySelectorAll("mark").length;
seen.vanilla = document.getElementById("vanilla").textContent;
ours.querySelector("mark").focus();
seen.tip = document.getElementById("tip").textContent;
pick("filter", "flip");
seen.flipped = document.getElementById("item").options.length;
seen.figures = document.querySelectorAll("figure[data-figure]").length;
setTimeout(() => {
  seen.drawn = document.querySelectorAll("figure[data-figure] .main-svg").length;
  document.body.dataset.seen = JSON.stringify(seen);
}, 1500);
</script>
"""
CATCHER = (
    "<script>window.pageErrors = []; addEventListener('error', (event) => pageErrors.push(event.message));</script>"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_cell(folder / "runs", Spec("vanilla", [Item(61, 2.0, text=EVIL)] * 9))
    write_cell(folder / "runs", Spec("eagle3", [Item(61, 1.5, 20)] * 9))
    for method in ("dynamic", "lossy", "combined"):
        write_cell(folder / "runs", Spec(method, ITEMS, trace=True))
    assert report.main(["--results", str(folder / "runs"), "--out", str(folder / "index.html")]) == 0
    return folder / "index.html"


def browse(page: Path, width: int, tmp_path: Path) -> dict:
    """Open a copy of the page with the driver at its end; return what the driver saw and what the console said."""
    chromium = shutil.which("chromium") or pytest.fail("no chromium: apt-get install chromium")
    driven = tmp_path / "driven.html"
    driven.write_text(page.read_text().replace("<head>", f"<head>{CATCHER}").replace("</body>", f"{DRIVER}</body>"))
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
    ]
    command += [f"--window-size={width},900", "--virtual-time-budget=20000", "--dump-dom", driven.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, done.stdout[-500:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">")), "console": console}


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 500])
def test_the_page_works_in_a_browser(page: Path, tmp_path: Path, width: int) -> None:
    seen = browse(page, width, tmp_path)
    assert seen["errors"] == []
    assert seen["console"] == []
    assert seen["figures"] > 5
    assert seen["drawn"] >= seen["figures"], "every figure has its drawing"
    assert seen["cells"] == 2
    assert (seen["all"], seen["flipped"], seen["marks"]) == (9, 3, 2)
    assert "target's own choice" in seen["tip"]
    assert "margin 0.400" in seen["tip"]
    assert seen["vanilla"] == EVIL, "a model's text stays text"
    assert seen["overflow"] <= 0, "nothing wider than the screen but what scrolls by itself"


def test_the_page_is_self_contained(page: Path) -> None:
    text = page.read_text()
    ours = text[: text.index("plotly.js v")] + text[text.rindex('id="figures-data"') :]
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', ours)
    assert text.count("plotly.js v") == 1
    assert EVIL not in text


def test_the_page_shows_problems_and_papers(page: Path) -> None:
    text = page.read_text()
    assert "missing (paper 1.93)" in text
    assert "Best static strict" not in text, "none was measured"


class Words:
    """A tokenizer of one word a token."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(f" w{one}" for one in ids if one != 2)


def test_the_inspector_shows_every_traced_rule_that_promotes(tmp_path: Path) -> None:
    """One of your own too (docs/extending.md)."""
    write_cell(tmp_path, Spec("vanilla", [Item(61, 2.0)] * 9))
    write_cell(tmp_path, Spec("dynamic", ITEMS, trace=True))
    write_cell(tmp_path, Spec("lossy", ITEMS, trace=True, options={"rule": "topk"}))
    (cell,) = inspected(Study.load(tmp_path), per_cell=2)
    assert cell["name"].startswith("lossy")


def test_an_output_is_cut_at_its_promotions() -> None:
    promoted = [
        {"position": 1, "token": 11, "target_token": 7, "margin": 0.4},
        {"position": 3, "token": 13, "target_token": 8, "margin": 0.9},
    ]
    line = {
        "output_ids": [10, 11, 12, 13, 14, 2],
        "text": " w10 w11 w12 w13 w14",
        "trace": [{"promoted": promoted[:1]}, {"promoted": promoted[1:]}],
    }
    found = parts(line, Words())
    assert found == [
        " w10",
        {"text": " w11", "target": " w7", "margin": 0.4},
        " w12",
        {"text": " w13", "target": " w8", "margin": 0.9},
        " w14",
    ]
    assert "".join(part if isinstance(part, str) else part["text"] for part in found) == line["text"]


def test_without_a_tokenizer_the_text_is_whole_and_promotions_are_listed_by_id() -> None:
    line = {
        "output_ids": [10, 11],
        "text": "ab",
        "trace": [{"promoted": [{"position": 1, "token": 11, "target_token": 7, "margin": None}]}],
    }
    text, promoted = parts(line, None)
    assert text == "ab"
    assert (promoted["text"], promoted["target"], promoted["margin"]) == (" [11 at 1]", "<token 7>", None)
