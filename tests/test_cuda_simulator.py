"""The simpler kernels in numba's own simulator: it is not the lab alone that finds them right."""

import os
import subprocess
import sys
from pathlib import Path


def test_kernels_without_shuffles_in_numbas_simulator():
    child = Path(__file__).with_name("simulated_kernels.py")
    run = subprocess.run(
        [sys.executable, str(child)],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.returncode) == ("as in numpy\n", 0), run.stderr
