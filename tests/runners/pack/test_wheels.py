"""Which wheels make a pack."""

from pathlib import Path

import pytest

from runners.errors import UserError
from runners.pack import wheels


def test_every_line_is_pinned_once() -> None:
    names = [requirement.split("==")[0] for requirement in wheels.pinned()]
    assert all(requirement.count("==") == 1 for requirement in wheels.pinned())
    assert len({wheels.normal(name) for name in names}) == len(names)


def test_shared_pins_are_those_of_the_cpu_install() -> None:
    lists = wheels.ROOT / "adaptivespec" / "sglang_cpu"
    lines = [
        line
        for name in ("requirements.txt", "requirements-nodeps.txt")
        for line in (lists / name).read_text().splitlines()
        if "==" in line
    ]
    own = dict(requirement.split("==") for requirement in wheels.pinned())
    differing = {
        name: version for name, version in (line.split("==") for line in lines) if own.get(name, version) != version
    }
    assert set(differing) == {"torchvision"}  # goes with torch


def test_one_wheel_is_chosen_for_each_requirement(tmp_path: Path) -> None:
    names = ("a_b-1.0-py3-none-any.whl", "a_b-2.0-py3-none-any.whl", "c-1-py3-none-any.whl")
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in wheels.select(tmp_path, ["A.b==2.0", "c"])] == [names[1], names[2]]
    for wrong in ("a-b", "a-b==3.0", "d"):
        with pytest.raises(UserError, match="one wheel of"):
            wheels.select(tmp_path, [wrong])


def test_the_targets_tags_reach_from_its_glibc_down() -> None:
    options = wheels.target_options()
    assert "manylinux_2_34_x86_64" in options
    assert "manylinux_2_35_x86_64" not in options
    assert options[options.index("--python-version") + 1] == "3.12"
