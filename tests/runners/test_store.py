import json
import subprocess
import sys
from pathlib import Path

from runners.store import CellFolder


def test_a_line_cut_by_a_kill_is_set_aside_and_the_rest_kept(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path, "cell")
    with folder.claim():
        folder.append({"index": 0})
        folder.append({"index": 1})
        with folder.generations_path.open("ab") as stream:
            stream.write(b'{"index": 2, "te')
        assert [line["index"] for line in folder.generations()] == [0, 1]
        assert (folder.path / "generations.broken-0.txt").read_bytes() == b'{"index": 2, "te'
        folder.append({"index": 2})
        assert [line["index"] for line in folder.generations()] == [0, 1, 2]


def test_garbage_in_the_middle_is_set_aside_with_all_that_follows(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path, "cell")
    with folder.claim():
        folder.append({"index": 0})
        with folder.generations_path.open("ab") as stream:
            stream.write(b"\x00\x00\n" + json.dumps({"index": 2}).encode() + b"\n")
        assert [line["index"] for line in folder.generations()] == [0]
        assert b'"index": 2' in (folder.path / "generations.broken-0.txt").read_bytes()


def test_status_follows_the_files(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path, "cell")
    assert folder.status() == "missing"
    with folder.claim():
        assert folder.status() == "missing"
        folder.append({"index": 0})
        assert folder.status() == "partial"
        folder.write("record.json", "{}")
        assert folder.status() == "done"
        assert folder.record() == {}


WRITER = """
import json, sys, time
from pathlib import Path
from runners.store import CellFolder
folder = CellFolder(Path(sys.argv[1]), "cell")
while not (Path(sys.argv[1]) / "go").exists():
    time.sleep(0.001)
with folder.claim():
    if folder.record() is None:
        for index in range(50):
            folder.append({"index": index})
        folder.write("record.json", json.dumps({"n": len(folder.generations())}))
"""


def test_two_writers_make_a_cell_exactly_once(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(2)]
    (tmp_path / "go").touch()
    assert [writer.wait() for writer in writers] == [0, 0]
    folder = CellFolder(tmp_path, "cell")
    assert [line["index"] for line in folder.generations()] == list(range(50))
    assert folder.record() == {"n": 50}
