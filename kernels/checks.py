"""What the kernels demand of their arguments, whatever they run on. Checking a call costs a few microseconds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ints = NDArray[np.int64]

CACHE_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
GPU_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))
MAX_HEAD_DIM = 256
"""The longest vector that the GPU kernels have registers and shared memory for."""


def check_caches(k_cache: Floats, v_cache: Floats) -> None:
    """Keys and values ``[num_blocks, kv_heads, block_size, head_dim]`` have one shape, in float32 or float64.

    TypeError or ValueError if not.
    """
    if k_cache.dtype not in CACHE_DTYPES:
        raise TypeError(f"the cache is {k_cache.dtype}; kernels read float32 and float64, so allocate one of these")
    if k_cache.ndim != 4 or k_cache.shape != v_cache.shape:
        raise ValueError(
            f"k_cache {k_cache.shape} and v_cache {v_cache.shape} must be alike: "
            "[num_blocks, kv_heads, block_size, head_dim]"
        )
    check_like_cache(k_cache, k_cache=k_cache, v_cache=v_cache)


def check_like_cache(k_cache: Floats, /, **arrays: Floats) -> None:
    """Arrays are contiguous and of the cache's dtype, in which the kernels compute. TypeError or ValueError if not."""
    for name, array in arrays.items():
        if array.dtype != k_cache.dtype:
            raise TypeError(f"{name} is {array.dtype} and the cache {k_cache.dtype}; convert it to the cache's dtype")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} has strides {array.strides}; the kernels need it contiguous, so copy it first")


def check_attention(
    q: Floats,
    k_cache: Floats,
    v_cache: Floats,
    block_tables: Ints,
    context_lens: Ints,
    query_start: Ints,
    out: Floats,
) -> None:
    """The arguments of ``paged_attention`` have dtypes and shapes that fit together. TypeError or ValueError if not."""
    check_caches(k_cache, v_cache)
    check_like_cache(k_cache, q=q, out=out)
    _, kv_heads, _, head_dim = k_cache.shape
    if not all(k_cache.shape[1:]):
        raise ValueError(f"k_cache {k_cache.shape} must have one head, one row in a block and one element at least")
    if q.ndim != 3 or q.shape[2] != head_dim or not q.shape[1] or q.shape[1] % kv_heads:
        raise ValueError(
            f"q {q.shape} must be [tokens, heads, head_dim] with the cache's head_dim {head_dim} "
            f"and a multiple of its {kv_heads} heads"
        )
    if out.shape != q.shape:
        raise ValueError(f"out {out.shape} must have the shape of q, {q.shape}")
    for name, array in (("block_tables", block_tables), ("context_lens", context_lens), ("query_start", query_start)):
        if array.dtype != np.int64:
            raise TypeError(f"{name} is {array.dtype}; convert it to int64")
    if block_tables.ndim != 2 or not len(block_tables) == len(context_lens) == len(query_start) - 1:
        raise ValueError(
            f"block_tables {block_tables.shape}, context_lens {context_lens.shape} and query_start {query_start.shape} "
            "must be [sequences, max_blocks], [sequences] and [sequences + 1]"
        )


@dataclass(frozen=True, slots=True)
class Described:
    """What can be asked of an array wherever it lies: looking at a GPU's elements would make it wait."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contiguous: bool


def described(array: Any) -> Described:
    """An array of numpy's, of numba's on a device, or a torch tensor on either."""
    device = getattr(array, "__cuda_array_interface__", None)
    if device is None:
        host = np.asarray(array)
        return Described(host.shape, host.dtype, host.flags.c_contiguous)
    shape, dtype = tuple(device["shape"]), np.dtype(device["typestr"])
    strides, packed = device.get("strides"), dtype.itemsize
    contiguous = True
    for size, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        contiguous &= size == 1 or stride == packed
        packed *= size
    return Described(shape, dtype, contiguous)


def check_gpu_floats(dimensions: int, **arrays: Any) -> list[tuple[int, ...]]:
    """Shapes of arrays with so many dimensions, each contiguous float16 or float32. TypeError or ValueError if not."""
    shapes = []
    for name, array in arrays.items():
        found = described(array)
        if found.dtype not in GPU_DTYPES:
            raise TypeError(f"{name} is {found.dtype}; GPU kernels read float16 and float32, so convert it")
        if len(found.shape) != dimensions or not found.contiguous:
            raise ValueError(f"{name} {found.shape} must have {dimensions} dimensions and be contiguous")
        shapes.append(found.shape)
    return shapes


def check_same(dimensions: int, **arrays: Any) -> tuple[int, ...]:
    """The shape that all these arrays have. TypeError or ValueError if they differ or are no float16 or float32."""
    shapes = check_gpu_floats(dimensions, **arrays)
    if len(set(shapes)) != 1:
        raise ValueError(f"{', '.join(arrays)} have shapes {', '.join(map(str, shapes))}; they must be alike")
    return shapes[0]


def check_rows(x: Any, out: Any) -> int:
    """Rows of x ``[rows, columns]``, each with a place in out ``[rows]``. TypeError or ValueError if not."""
    (rows, _), *_ = check_gpu_floats(2, x=x)
    (places,), *_ = check_gpu_floats(1, out=out)
    if rows != places:
        raise ValueError(f"x has {rows} rows and out {places} places; give one for each row")
    return rows


def check_product(a: Any, b: Any, out: Any) -> tuple[int, int]:
    """m and n of ``[m, n] = [m, k] [k, n]``. TypeError or ValueError if the matrices do not fit."""
    (m, k), (also_k, n), result = check_gpu_floats(2, a=a, b=b, out=out)
    if k != also_k or result != (m, n):
        raise ValueError(f"a {(m, k)}, b {(also_k, n)} and out {result} must be [m, k], [k, n] and [m, n]")
    return m, n


def check_flash_attention(q: Any, k: Any, v: Any, out: Any, log_sums: Any) -> tuple[int, int]:
    """Rows and heads of one sequence's attention. TypeError or ValueError if its arguments do not fit together."""
    rows, heads, head_dim = check_same(3, q=q, out=out)
    _, kv_heads, kv_dim = check_same(3, k=k, v=v)
    check_heads(heads, head_dim, kv_heads, kv_dim)
    check_workspace(log_sums, "log_sums", (rows, heads))
    return rows, heads


def check_heads(heads: int, head_dim: int, kv_heads: int, kv_dim: int) -> None:
    """Query heads share key heads evenly, and a head fits the kernels' registers. ValueError if not."""
    if not (heads and kv_heads and head_dim):
        raise ValueError(f"q has {heads} heads of {head_dim} and k {kv_heads} of {kv_dim}; give one at least of each")
    if head_dim != kv_dim or heads % kv_heads:
        raise ValueError(
            f"q has {heads} heads of {head_dim} and k {kv_heads} of {kv_dim}; head_dim must be the same "
            "and q's heads a multiple of k's"
        )
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim is {head_dim}; GPU kernels have room for {MAX_HEAD_DIM} at most")


def check_workspace(array: Any, name: str, shape: tuple[int, ...]) -> None:
    """A float32 array of just this shape. TypeError or ValueError if not."""
    found = described(array)
    if found.dtype != np.float32:
        raise TypeError(f"{name} is {found.dtype}; kernels write float32 there")
    if found.shape != shape or not found.contiguous:
        raise ValueError(f"{name} {found.shape} must be {shape} and contiguous")


def check_gpu_caches(k_cache: Any, v_cache: Any) -> tuple[int, ...]:
    """The shape ``[num_blocks, kv_heads, block_size, head_dim]`` of both caches. TypeError or ValueError if not."""
    shape = check_same(4, k_cache=k_cache, v_cache=v_cache)
    check_gpu_like(k_cache, v_cache=v_cache)
    if not all(shape[1:]):
        raise ValueError(f"k_cache {shape} must have one head, one row in a block and one element at least")
    return shape


def check_gpu_like(cache: Any, /, **arrays: Any) -> None:
    """Arrays are of the cache's dtype. TypeError if not."""
    dtype = described(cache).dtype
    for name, array in arrays.items():
        if described(array).dtype != dtype:
            raise TypeError(
                f"{name} is {described(array).dtype} and the cache {dtype}; convert it to the cache's dtype"
            )


def check_ints(name: str, array: Any, *shape: int | None) -> tuple[int, ...]:
    """The shape of an int64 array, which is this one but for None. TypeError or ValueError if not."""
    found = described(array)
    if found.dtype != np.int64:
        raise TypeError(f"{name} is {found.dtype}; convert it to int64")
    fits = len(found.shape) == len(shape) and all(
        want is None or have == want for have, want in zip(found.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} is {list(found.shape)}; it must be [{wanted}]")
    return found.shape


def check_range(name: str, array: Any, count: int, column: int | None = None) -> None:
    """Integers, or those of a column, lie in ``[0, count)``. ValueError if not; a GPU's memory is not looked at."""
    if getattr(array, "__cuda_array_interface__", None) is None:
        values = np.asarray(array) if column is None else np.asarray(array)[:, column]
        if values.size and not 0 <= values.min() <= values.max() < count:
            raise ValueError(f"{name} run from {values.min()} to {values.max()}; there are 0 to {count - 1}")


def check_store(k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any) -> tuple[int, int, int]:
    """Tokens, kv_heads and head_dim of what goes into the cache. TypeError or ValueError if it does not fit."""
    num_blocks, kv_heads, block_size, head_dim = check_gpu_caches(k_cache, v_cache)
    check_gpu_like(k_cache, k=k, v=v)
    (tokens,) = check_ints("slots", slots, None)
    for name, array in (("k", k), ("v", v)):
        if described(array).shape != (tokens, kv_heads, head_dim):
            raise ValueError(f"{name} is {described(array).shape}; {tokens} slots need {(tokens, kv_heads, head_dim)}")
    check_range("slots", slots, num_blocks * block_size)
    return tokens, kv_heads, head_dim


def check_queries(q: Any, k_cache: Any, kv_heads: int, kv_dim: int, out: Any) -> tuple[int, int]:
    """Rows and heads of queries that fit a cache. TypeError or ValueError if they do not."""
    check_gpu_like(k_cache, q=q, out=out)
    rows, heads, head_dim = check_same(3, q=q, out=out)
    check_heads(heads, head_dim, kv_heads, kv_dim)
    return rows, heads


def check_decode(q: Any, k_cache: Any, v_cache: Any, block_tables: Any, context_lens: Any, out: Any) -> tuple[int, int]:
    """Sequences and heads of a decode. TypeError or ValueError if its arguments do not fit together."""
    _, kv_heads, block_size, head_dim = check_gpu_caches(k_cache, v_cache)
    sequences, heads = check_queries(q, k_cache, kv_heads, head_dim, out)
    check_contexts("block_tables", block_tables, block_size, context_lens, sequences)
    return sequences, heads


def check_contexts(name: str, tables: Any, block_size: int, context_lens: Any, sequences: int) -> None:
    """Each sequence's context fits in its row of the table. TypeError or ValueError if not."""
    _, columns = check_ints(name, tables, sequences, None)
    check_ints("context_lens", context_lens, sequences)
    check_range("context_lens", context_lens, columns * block_size + 1)


def check_parts(
    partial: Any, log_sums: Any, q: Any, k_cache: Any, context_lens: Any, part: int
) -> tuple[int, int, int]:
    """Parts, kv_heads and head_dim, with room for each part's output. TypeError or ValueError if there is none.

    That the parts hold the longest context is checked where the host can see it.
    """
    sequences, heads, head_dim = described(q).shape
    parts = described(partial).shape[0]
    check_workspace(partial, "partial", (parts, sequences, heads, head_dim))
    check_workspace(log_sums, "log_sums", (parts, sequences, heads))
    check_range("context_lens", context_lens, parts * part + 1)
    return parts, described(k_cache).shape[1], head_dim


def check_tokens(q: Any, k_cache: Any, v_cache: Any, token_tables: Any, context_lens: Any, out: Any) -> tuple[int, int]:
    """Sequences and heads of attention over single tokens. TypeError or ValueError if its arguments do not fit."""
    check_gpu_like(k_cache, v_cache=v_cache)
    _, kv_heads, head_dim = check_same(3, k_cache=k_cache, v_cache=v_cache)
    sequences, heads = check_queries(q, k_cache, kv_heads, head_dim, out)
    check_contexts("token_tables", token_tables, 1, context_lens, sequences)
    return sequences, heads


def check_pairs(source_k: Any, source_v: Any, target_k: Any, target_v: Any, pairs: Any) -> tuple[int, int, int]:
    """Copies, heads and elements of a head's block. TypeError or ValueError if pools or pairs do not fit."""
    sources, *block = check_gpu_caches(source_k, source_v)
    targets, *target_block = check_gpu_caches(target_k, target_v)
    check_gpu_like(source_k, target_k=target_k)
    if block != target_block:
        raise ValueError(f"blocks of shape {block} do not fit where blocks are {target_block}")
    copies, _ = check_ints("pairs", pairs, None, 2)
    check_range("source blocks", pairs, sources, column=0)
    check_range("target blocks", pairs, targets, column=1)
    return copies, block[0], block[1] * block[2]


def check_prefill(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_tables: Any,
    context_lens: Any,
    query_start: Any,
    out: Any,
    max_rows: int,
) -> tuple[int, int, int, int, int]:
    """Tokens, sequences, kv_heads, heads that share one, head_dim. TypeError or ValueError if arguments do not fit."""
    _, kv_heads, block_size, head_dim = check_gpu_caches(k_cache, v_cache)
    tokens, heads = check_queries(q, k_cache, kv_heads, head_dim, out)
    (sequences,) = check_ints("context_lens", context_lens, None)
    check_contexts("block_tables", block_tables, block_size, context_lens, sequences)
    check_ints("query_start", query_start, sequences + 1)
    check_offsets(query_start, tokens, max_rows)
    return tokens, sequences, kv_heads, heads // kv_heads, head_dim


def check_offsets(query_start: Any, tokens: int, max_rows: int) -> None:
    """Offsets go from 0 to the number of tokens in steps of 0 to ``max_rows``. ValueError if not.

    Those in a GPU's memory are not looked at.
    """
    if getattr(query_start, "__cuda_array_interface__", None) is None:
        offsets = np.asarray(query_start)
        steps = np.diff(offsets)
        if offsets[0] != 0 or offsets[-1] != tokens or (steps < 0).any() or (steps > max_rows).any():
            raise ValueError(
                f"query_start {offsets.tolist()} must go from 0 to the {tokens} tokens of q, "
                f"by at most max_rows, {max_rows}, at a time"
            )
