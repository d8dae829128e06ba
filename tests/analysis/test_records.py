"""What lies in a folder is read as it is, or named as a problem."""

import json

import pytest

from analysis.metrics import items
from analysis.records import cut_trace, load, parse_line
from tests.analysis.synthetic import Item, Spec, write_cell


def test_counting_steps_without_reading_them_gives_the_same_items(tmp_path) -> None:
    text = 'a model may write "trace": [ and ], "server": " too, or \\"committed\\": 1'
    write_cell(tmp_path, Spec("combined", [Item(text=text)] * 3, trace=True))
    (record,) = load(tmp_path).records
    counted, read = items(record.counted(), record.grades()), items(record.generations(), record.grades())
    assert counted["trace_steps"].tolist() == [20, 20, 20]
    assert counted.to_dict() == read[counted.columns].to_dict()


def test_a_line_written_otherwise_is_read_whole() -> None:
    line = json.dumps({"server": "s", "trace": [{"committed": 1}]}, separators=(",", ":")).encode()
    assert cut_trace(line) == parse_line(line)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("record.json", "{", "cannot be read"),
        ("record.json", '{"schema": 2}', "schema=2: expected 1"),
        ("record.json", '{"schema": 1}', "KeyError"),
        ("faults.json", '[{"kind": "ServerError", "detail": "died\\nlog"}]', "last fault: ServerError: died)"),
        ("faults.json", '[{"kind": "ServerError", "detail": ""}]', "(last fault: ServerError);"),
        ("faults.json", '[{"kind": "Ser', "no record.json (faults.json cannot be read);"),
    ],
)
def test_a_folder_without_a_usable_record_is_a_problem(tmp_path, name: str, content: str, reason: str) -> None:
    (tmp_path / "some-cell").mkdir()
    (tmp_path / "some-cell" / name).write_text(content)
    (problem,) = load(tmp_path).problems
    assert problem.name == "some-cell"
    assert reason in problem.reason


def test_folders_that_are_no_cells_are_passed_over(tmp_path) -> None:
    for name in ("logs", ".hydra", "wandb"):
        (tmp_path / name).mkdir()
    assert load(tmp_path).problems == ()
