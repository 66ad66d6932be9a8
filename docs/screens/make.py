"""Draw the pictures of the screens in this folder: python docs/screens/make.py [SCENE ...]

Each scene becomes an SVG and, where rsvg-convert is installed, a PNG. They are the scenes that `tests/tui/snapshots`
compares, here started in a terminal, so that no picture can show what a terminal does not. Names of scenes draw those
alone.
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

from scenes import SCENES, photograph_terminal  # noqa: E402 - it lies among the tests

SIZE = (120, 40)
SHOWN = ("presets", "configure", "run", "run-ended", "runs", "compare", "top")
"""The scenes that a page shows."""


def main(names: Sequence[str]) -> int:
    """Draw the scenes of these names, or all that a page shows; 2 where there is no such scene."""
    known = {scene.name: scene for scene in SCENES}
    unknown = sorted({*names} - known.keys())
    if unknown:
        print(f"no such scene: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or SHOWN:
        _write(name, photograph_terminal(known[name], SIZE).svg(exact=True))
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
