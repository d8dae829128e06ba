"""`python run.py method=combined kappa=0.2`: see conf/config.yaml and `python run.py --help`."""

from runners.cli import main

if __name__ == "__main__":
    main()
