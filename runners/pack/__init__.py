"""Carries SGLang and this project to a GPU machine without a network and with an older torch (docs/gpu-machine-without-network.md).

    python -m runners.pack make --out pack           # here, with a package index: parts of at most 60 MiB, manifest, installer
    python3 pack/install.py --prefix ~/adaptivespec  # there, with the machine's own torch

The line: `requirements.txt` -> wheels (`wheels`) -> a trimmed tree of files (`tree`) -> parts and manifest (`parts`). `install.py`
travels beside the parts and uses the standard library only.
"""
