"""Vectors in registers do what the same expression does on an array."""

import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from kernels.cpu.vectors import LANES, broadcast, larger, largest_lane, load, multiply_add, store, store_sums

DTYPES = [np.float32, np.float64]
pytestmark = pytest.mark.parametrize("dtype", DTYPES)


@njit
def move(source, row, column, target):
    store(target, 1, 2, load(source, row, column))


@njit
def times_and_plus(number, array, target):
    store(target, 0, 0, multiply_add(broadcast(number), load(array, 0, 0), load(array, 1, 0)))


@njit
def choose(array, target):
    store(target, 0, 0, larger(load(array, 0, 0), load(array, 1, 0)))


@njit
def largest(array):
    return largest_lane(load(array, 0, 0))


@njit
def add_lanes(array, target):
    store_sums(target, 1, 1, load(array, 0, 0), load(array, 1, 0), load(array, 2, 0), load(array, 3, 0))


def numbers(dtype, rows=4):
    return np.random.default_rng(0).integers(-99, 99, (rows, LANES)).astype(dtype)


def test_a_vector_is_loaded_and_stored_at_any_column(dtype):
    source, target = np.arange(60, dtype=dtype).reshape(3, 20), np.zeros((2, 11), dtype)
    expected = target.copy()
    expected[1, 2 : 2 + LANES] = source[2, 5 : 5 + LANES]
    move(source, 2, 5, target)
    assert_array_equal(target, expected)


def test_multiplication_and_addition_are_lane_by_lane(dtype):
    array, target = numbers(dtype), np.zeros((1, LANES), dtype)
    times_and_plus(dtype(3), array, target)
    assert_array_equal(target[0], 3 * array[0] + array[1])


def test_the_larger_passes_over_what_is_not_a_number_on_the_right(dtype):
    array, target = numbers(dtype), np.zeros((1, LANES), dtype)
    expected = np.maximum(array[0], array[1])
    array[1, 3], expected[3] = np.nan, array[0, 3]
    choose(array, target)
    assert_array_equal(target[0], expected)


@pytest.mark.parametrize("lane", range(LANES))
def test_the_largest_lane_may_be_any(dtype, lane):
    array = np.full((1, LANES), -np.inf, dtype)
    array[0, lane] = -7
    assert largest(array) == -7


def test_sums_over_lanes_stand_in_the_order_of_their_vectors(dtype):
    array, target = numbers(dtype), np.zeros((2, 6), dtype)
    expected = target.copy()
    expected[1, 1:5] = array.sum(axis=1)
    add_lanes(array, target)
    assert_array_equal(target, expected)
