"""The server's options, read once per process from ADAPTIVESPEC_CONFIG."""

import json
import os
from functools import lru_cache
from importlib.metadata import version

from adaptivespec.options import ENV, Options

NAME = "ADAPTIVESPEC"
"""What --speculative-algorithm calls the plugin."""


@lru_cache(maxsize=1)
def server_options() -> Options:
    """This server's options.

    Raises:
        ValueError: naming the key or value in ADAPTIVESPEC_CONFIG that does not fit.
    """
    return Options.load(os.environ.get(ENV))


def freeze() -> None:
    """Hand the options to the processes to come inline: a file may change while they start."""
    os.environ[ENV] = json.dumps(server_options().to_dict())


def plugin_version() -> str:
    """Version of the installed distribution."""
    return version("adaptivespec")
