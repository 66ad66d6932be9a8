"""The two build steps that pyproject.toml cannot state: the cffi extension, and the presets in the wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithPresets(build_py):
    """Copy `presets/` beside the package, so that an installed workbench finds the shipped presets."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "workbench" / "_presets"
            target.mkdir(parents=True, exist_ok=True)
            for preset in sorted(Path("presets").glob("*.toml")):
                shutil.copy2(preset, target)


setup(
    cmdclass={"build_py": BuildWithPresets},
    cffi_modules=["native/build_native.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
