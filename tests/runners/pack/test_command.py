"""The pack's command line."""

import pytest

from runners.pack import __main__ as command


@pytest.mark.parametrize("size", ["0", "-1", "0.0000001"])
def test_a_part_of_no_size_is_refused_before_anything_is_fetched(
    size: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["pack", "make", "--out", "nowhere", "--part-mib", size])
    monkeypatch.setattr(command, "make", lambda *_: pytest.fail("it went on"))
    with pytest.raises(SystemExit):
        command.main()
    assert "expected a size above 0" in capsys.readouterr().err
