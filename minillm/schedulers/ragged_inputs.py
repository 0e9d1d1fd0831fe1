"""What a batch of unequal inputs looks like to a model: one flat buffer, and the arrays that say who owns which part.

Triton Inference Server concatenates the elements of an input declared with ``allow_ragged_batch`` and fills, for each
``batch_input`` of the model, one array of these kinds (``BatchInput`` and ``BatchOutput`` in ``model_config.proto``,
``backend_input_collector.cc``). Attention over a ragged batch of tokens needs the same: its ``query_start`` is the
accumulated element count with zero. The engine's own batches take it from ``minillm.cache.flat``; these functions give
all that Triton's models may ask for.

Shapes are those of whole requests, batch dimension first; an element count is the product of all of it. Arrays are
int32; Triton also offers them as float32.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Counts = NDArray[np.int32]
Shapes = Sequence[tuple[int, ...]]
"""The shape of one input in each request of a batch."""


def compatible(
    first: Mapping[str, Array],
    other: Mapping[str, Array],
    ragged: Collection[str] = (),
    shape_tensors: Collection[str] = (),
) -> bool:
    """Whether a request's inputs, by name, may join the batch that the ``first`` request began.

    Both must have the same (optional) inputs; all but the ``ragged`` ones need equal shapes behind the batch
    dimension, and shape tensors equal contents.
    """
    return first.keys() == other.keys() and all(
        np.array_equal(first[name], other[name])
        if name in shape_tensors
        else first[name].shape[1:] == other[name].shape[1:]
        for name in first.keys() - set(ragged)
    )


def concatenate(inputs: Sequence[Array]) -> Array:
    """The ragged input itself ``[elements]``: all requests' elements, one request after the other."""
    return np.concatenate([each.ravel() for each in inputs])


def element_count(shapes: Shapes, entries: int | None = None) -> Counts:
    """BATCH_ELEMENT_COUNT ``[requests]``, int32: how many elements each request has.

    A buffer of more ``entries`` ends in zeros. Raises ValueError for one of too few, as the next two do.
    """
    return _fill([math.prod(shape) for shape in shapes], entries, tail=0)


def accumulated_element_count(shapes: Shapes, entries: int | None = None) -> Counts:
    """BATCH_ACCUMULATED_ELEMENT_COUNT ``[requests]``, int32: where each request's elements end in the flat buffer.

    A buffer of more ``entries`` repeats the last end, so that what is beyond owns nothing.
    """
    ends = np.cumsum(element_count(shapes)).tolist()
    return _fill(ends, entries, tail=ends[-1])


def accumulated_element_count_with_zero(shapes: Shapes, entries: int | None = None) -> Counts:
    """BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO ``[requests + 1]``: request i owns ``[result[i], result[i + 1])``.

    An int32 array. A buffer of more ``entries``, which count the leading zero too, repeats the last end.
    """
    ends = [0, *np.cumsum(element_count(shapes)).tolist()]
    return _fill(ends, entries, tail=ends[-1])


def max_element_count_as_shape(shapes: Shapes) -> Counts:
    """BATCH_MAX_ELEMENT_COUNT_AS_SHAPE ``[largest count]``, int32: the shape is the message, the contents undefined."""
    return np.empty(element_count(shapes).max(), dtype=np.int32)


def item_shape(shapes: Shapes) -> Counts:
    """BATCH_ITEM_SHAPE ``[items, rank - 1]``: the shape of each item of each request, without the batch dimension.

    An int32 array. Raises ValueError for inputs of unequal ranks.
    """
    ranks = {len(shape) for shape in shapes}
    if len(ranks) != 1:
        raise ValueError(f"the inputs have ranks {sorted(ranks)}; item shapes need one rank for all requests")
    return np.array([shape[1:] for shape in shapes for _ in range(shape[0])], dtype=np.int32)


def item_shape_flatten(shapes: Shapes) -> Counts:
    """BATCH_ITEM_SHAPE_FLATTEN ``[items * (rank - 1)]``: the same in one row."""
    return item_shape(shapes).ravel()


def scatter_with_input_shape(output: Array, shapes: Shapes) -> list[Array]:
    """BATCH_SCATTER_WITH_INPUT_SHAPE: the flat output ``[elements]`` as one array per request, shaped as its input.

    Raises ValueError for an output of another size than the inputs.
    """
    ends = accumulated_element_count(shapes)
    if output.size != ends[-1]:
        raise ValueError(f"the output has {output.size} elements and the inputs {ends[-1]}; they must be equal")
    return [part.reshape(shape) for part, shape in zip(np.split(output.ravel(), ends[:-1]), shapes, strict=True)]


def _fill(values: list[int], entries: int | None, tail: int) -> Counts:
    """The values in a buffer of so many entries, or just as many as there are values."""
    beyond = 0 if entries is None else entries - len(values)
    if beyond < 0:
        raise ValueError(f"the buffer has {entries} entries and the batch needs {len(values)}; give a larger one")
    return np.array([*values, *[tail] * beyond], dtype=np.int32)
