"""Loading a model takes no more memory above what the engine keeps than one unit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
PROGRAM = """
import gc, json, sys
from pathlib import Path
from benchmarks.model_io import high_water, load, make_model, resident, start_peak
folder, parameters = Path(sys.argv[1]), int(sys.argv[2])
unit = make_model(folder / "model", parameters)
make_model(folder / "small", 1_000_000)
load(folder / "small").close()
gc.collect()
start_peak()
engine = load(folder / "model")
peak = high_water()
print(json.dumps({"above": peak - resident(), "unit": unit, "held": sum(t.nbytes for _, t in engine.state())}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [200_000_000])
def test_a_load_peaks_at_one_unit_above_what_stays(tmp_path: Path, parameters: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(parameters)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["held"] > 10 * parameters
    assert found["above"] <= found["unit"] + 64 * MIB, found
