"""Draw the pictures of the screens in this folder: python docs/screens/make.py [SCENE ...]

Each scene becomes an SVG and, where rsvg-convert is installed, a PNG. They are the scenes that `tests/tui/snapshots`
compares, so that no picture here can show what the application does not. Names of scenes draw those alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
_TUI = HERE.parents[1] / "tests" / "tui"
sys.path[:0] = [str(_TUI), str(_TUI / "panels")]

from scenes import SCENES  # noqa: E402 - it lies among the tests

SIZE = (120, 40)
SMALL = (80, 24)
GROUPS = ("run-machine", "run-lanes", "run-log")
"""Of a run's screen; on a large terminal they are all seen at once, so these are drawn on a small one."""


def main(names: Sequence[str]) -> int:
    """Draw the scenes of these names, or all; 2 where there is no such scene."""
    known = [scene.name for scene in SCENES]
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"no such scene: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for scene in SCENES:
        if names and scene.name not in names:
            continue
        if scene.name not in GROUPS:
            _write(scene.name, scene.picture(SIZE).svg(exact=True))
        if scene.name in ("run", *GROUPS):
            _write(f"{scene.name}-small", scene.picture(SMALL).svg(exact=True))
    return 0


def _write(name: str, svg: str) -> None:
    """Keep one picture; a PNG needs rsvg-convert (librsvg)."""
    path = HERE / f"{name}.svg"
    path.write_text(svg, encoding="utf-8")
    print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    convert = shutil.which("rsvg-convert")
    if convert:
        subprocess.run([convert, str(path), "--output", str(path.with_suffix(".png"))], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
