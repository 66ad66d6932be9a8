"""Write the definition of an image with the built wheel and an NVIDIA GPU's torch: `dist/Containerfile`.

`make image` runs it after `make wheels`; where podman or docker is there, `podman build -t workbench dist` builds it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"

TEXT = """\
# {version}: podman build -t workbench . && podman run --rm -it --device nvidia.com/gpu=all --shm-size 1g \\
#     -v ./runs:/work/runs -v ~/.cache/huggingface:/home/user/.cache/huggingface workbench
# No compiler goes in: the wheel has the host optimizer. torch from PyPI brings CUDA's libraries; the driver is the
# host's.
FROM docker.io/library/python:3.12-slim-bookworm
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 TERM=xterm-256color
COPY constraints.txt workbench-*.whl /tmp/
RUN python -m pip install --only-binary=:all: --constraint /tmp/constraints.txt \\
        /tmp/workbench-*_$(uname -m).whl \\
    && rm /tmp/constraints.txt /tmp/workbench-*.whl \\
    && useradd --create-home user && mkdir -p /work/runs && chown -R user /work
USER user
WORKDIR /work
VOLUME /work/runs
ENTRYPOINT ["workbench"]
"""


def main() -> int:
    wheels = sorted(DIST.glob("workbench-*.whl"))
    if not wheels:
        sys.exit("dist/ has no wheels: make wheels first")
    version = "workbench " + wheels[0].name.split("-")[1]
    (DIST / "Containerfile").write_text(TEXT.format(version=version), encoding="utf-8")
    (DIST / "constraints.txt").write_bytes((ROOT / "constraints.txt").read_bytes())
    print(f"written: {DIST / 'Containerfile'}; podman build -t workbench {DIST}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
