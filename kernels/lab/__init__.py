"""The kernel lab: real ``@cuda.jit`` kernels on a machine without a GPU, run, checked and explained.

``with lab.check() as reports: kernel[grid, block](...)`` runs a launch with every check; ``with lab.run():`` runs it
fast. The same kernel, unchanged, compiles for a GPU. Contraction to fused multiply-adds and fast-math are not
modelled: compare floats with a tolerance.
"""

from kernels.lab.arrays import OutOfBounds
from kernels.lab.block import Deadlock
from kernels.lab.launch import check, run
from kernels.lab.report import Fault, Report
from kernels.lab.source import LabError

__all__ = ["Deadlock", "Fault", "LabError", "OutOfBounds", "Report", "check", "run"]
