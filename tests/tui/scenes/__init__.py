"""Pictures of the screens: the same scenes are compared by `tests/tui/snapshots` and drawn by `docs/screens/make.py`.

Invariant: a scene looks the same at every time, on every machine and in every checkout.
"""

from scenes.in_terminal import photograph_terminal
from scenes.picture import Picture, picture_of
from scenes.stage import NOW, Stage, photograph
from scenes.views import SCENES, Scene

__all__ = ["NOW", "SCENES", "Picture", "Scene", "Stage", "photograph", "photograph_terminal", "picture_of"]
