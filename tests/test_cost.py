"""The simulated cost of a pass, by hand."""

import pytest
from harness import request

from minillm.batch import Batch, BlockMoves, Rectangle, Span
from minillm.sequence import Sequence
from minillm.simulator.cost import ThreeTermCost

COST = ThreeTermCost(
    overhead=1.0, weight_bytes=80.0, flops_per_token=5.0, kv_bytes_per_token=2.0, bandwidth=20.0, flops=10.0
)
SPAN = Span(Sequence(request("A", 7, 2)), 4, 3)


def test_a_small_pass_waits_for_the_weights():
    assert COST(Batch((SPAN,))) == pytest.approx(1 + 80 / 20 + 7 * 2 / 20)


def test_a_large_pass_waits_for_the_arithmetic():
    assert COST(Batch((SPAN,) * 4)) == pytest.approx(1 + 12 * 5 / 10 + 4 * 7 * 2 / 20)


def test_a_padded_pass_pays_for_its_whole_rectangle():
    assert COST(Batch((SPAN,), rectangle=Rectangle(4, 3, 9))) == pytest.approx(1 + 12 * 5 / 10 + 36 * 2 / 20)


def test_a_pass_that_only_moves_blocks_reads_no_weights():
    assert COST(Batch(moves=BlockMoves(swap_out=((0, 1),)))) == pytest.approx(1)
