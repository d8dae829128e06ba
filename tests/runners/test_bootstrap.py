"""What `make setup` says where it cannot go on."""

import subprocess
import sys

from runners import bootstrap

OLD_PYTHON = """
import runpy, sys
sys.version_info = (3, 10, 12, "final", 0)
sys.modules["tomllib"] = None  # as where it does not exist
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_an_older_python_gets_the_remedy_and_no_missing_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OLD_PYTHON, bootstrap.__file__], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "is too old: 3.11 or newer is needed" in done.stderr
    assert "Traceback" not in done.stderr
