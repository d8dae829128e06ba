"""`python run.py method=combined kappa=0.2`: see conf/config.yaml and `python run.py --help`."""

import sys

try:
    from runners.cli import main
except ModuleNotFoundError as error:  # most likely the system's Python
    sys.exit(
        f"Error: {error} in {sys.executable}. Run `make setup` once; then `. .venv/bin/activate`, or call "
        ".venv/bin/python run.py instead of python run.py"
    )

if __name__ == "__main__":
    main()
