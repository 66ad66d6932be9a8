"""Workbench: train language models larger than the GPU on one machine."""

import os
import sys

__version__ = "0.1.0"


def _leave_current_folder() -> None:
    """Take the current folder off the import path where Python put it there for `-m`.

    A `json.py` that lies among somebody's data would run as code. The program's name is `-m` just while Python looks
    for the module, so a program that imports this package keeps its path.
    """
    if sys.argv[:1] != ["-m"] or sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    try:
        if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - pathlib would be imported from there
            del sys.path[0]
    except OSError:  # the folder is gone: Python put nothing there
        pass


_leave_current_folder()
