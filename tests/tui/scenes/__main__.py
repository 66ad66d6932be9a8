"""Show a scene on this terminal: python -m scenes SCENE FILE

FILE is written when the scene is shown, with its folder's path; the scene ends when somebody deletes FILE.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from scenes import SCENES

name, told = sys.argv[1], Path(sys.argv[2])


async def hold(folder: Path) -> None:
    told.with_suffix(".new").write_text(str(folder))
    told.with_suffix(".new").rename(told)
    while told.exists():
        await asyncio.sleep(0.05)


next(scene for scene in SCENES if scene.name == name).show(tuple(os.get_terminal_size()), hold)
