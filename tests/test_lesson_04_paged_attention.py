"""Lesson 4, paged attention: who owns which block, and attention that reads them in any order."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import oracle, real, real_cache, request, tokens_of
from passes import changed, compute, generate_greedily, teacher_forced, uncached_logits

from kernels.cpu import attention
from minillm.batch import Batch, BlockMoves, next_span
from minillm.cache.blocks import BlockManager, BlockPool, OutOfBlocks
from minillm.cache.flat import page_layout, slots_of
from minillm.cache.memory import PagedMemory
from minillm.cache.paged import PagedCache
from minillm.model.tiny import TINY, tiny
from minillm.schedulers.vllm import VLLM
from minillm.sequence import Sequence

# The block manager: blocks of 4 tokens, the one freed last is handed out first.


@pytest.mark.task(4, 1)
def test_tokens_need_as_many_blocks_as_they_begin(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    check("blocks for 0, 1, 4, 5, 8, 9 tokens", [blocks.blocks_for(n) for n in (0, 1, 4, 5, 8, 9)], [0, 1, 1, 2, 2, 3])


@pytest.mark.task(4, 1)
def test_a_new_table_takes_the_blocks_that_its_tokens_need_off_the_pool(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    check("blocks of the first sequence, of 10 tokens", blocks.allocate(10), [0, 1, 2])
    check("blocks of the second, of 4 tokens", blocks.allocate(4), [3])
    check("free blocks", blocks.num_free, 4)


@pytest.mark.task(4, 1)
def test_a_new_table_s_blocks_can_be_freed(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    table = blocks.allocate(10)
    check("free blocks after 10 tokens came", blocks.num_free, 5)
    blocks.free(table)
    check("free blocks after they left", blocks.num_free, 8)


@pytest.mark.task(4, 1)
def test_the_last_free_block_can_be_had(check):
    blocks = BlockManager(num_blocks=2, block_size=4)
    check("blocks of a sequence of 7 tokens, where 2 blocks are free", allocated(blocks, 7), [0, 1])


@pytest.mark.task(4, 1)
def test_a_sequence_that_does_not_fit_takes_nothing(check):
    blocks = BlockManager(num_blocks=4, block_size=4)
    blocks.allocate(8)
    check("blocks of a sequence of 12 tokens, where 2 blocks are free", allocated(blocks, 12), "OutOfBlocks")
    check("free blocks after the refusal", blocks.num_free, 2)


@pytest.mark.task(4, 1)
def test_a_sequence_that_the_whole_pool_could_not_hold_takes_nothing(check):
    blocks = BlockManager(num_blocks=4, block_size=4)
    blocks.allocate(8)
    check("blocks of a sequence of 20 tokens, where 2 of 4 blocks are free", allocated(blocks, 20), "OutOfBlocks")
    check("free blocks after the refusal", blocks.num_free, 2)


def allocated(blocks, num_tokens):
    try:
        return blocks.allocate(num_tokens)
    except OutOfBlocks:
        return "OutOfBlocks"


@pytest.mark.task(4, 2)
def test_freed_blocks_are_handed_out_again(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    first, second = blocks.allocate(8), blocks.allocate(8)
    blocks.free(first)
    check("the freed table", first, [])
    check("free blocks", blocks.num_free, 6)
    check("blocks of the next sequence", sorted(blocks.allocate(8)), [0, 1])
    check("blocks of the other sequence", second, [2, 3])


def test_blocks_are_freed_from_the_last_so_that_the_next_sequence_gets_them_in_order():
    blocks = BlockManager(num_blocks=8, block_size=4)
    blocks.free(blocks.allocate(8))
    assert blocks.allocate(8) == [0, 1]


@pytest.mark.task(4, 2)
def test_a_fork_shares_every_block_until_its_last_owner_leaves(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    check("blocks of the child", child, [0, 1, 2])
    check("free blocks after the fork", blocks.num_free, 5)
    blocks.free(parent)
    check("free blocks after the parent left", blocks.num_free, 5)
    check("blocks of the child after the parent left", child, [0, 1, 2])
    blocks.free(child)
    check("free blocks after the child left too", blocks.num_free, 8)


@pytest.mark.task(4, 2)
def test_parent_and_child_grow_apart(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(8)
    child = blocks.fork(parent)
    child.append(7)
    check("blocks of the parent when the child's table has grown", parent, [0, 1])


@pytest.mark.task(4, 2)
def test_a_block_of_three_owners_is_free_when_the_third_releases_it(check):
    pool = BlockPool(2)
    block = pool.take()
    pool.share(block)
    pool.share(block)
    free = []
    for _ in range(3):
        pool.release(block)
        free.append(pool.num_free)
    check("free blocks after the first, second and third release", free, [1, 1, 2])


@pytest.mark.task(4, 2)
def test_a_block_cannot_be_freed_twice_or_shared_when_free(check):
    blocks = BlockManager(num_blocks=4, block_size=4)
    blocks.free(blocks.allocate(4))
    with pytest.raises(ValueError):
        blocks.free([0])
    with pytest.raises(ValueError):
        blocks.fork([0])
    check("free blocks", blocks.num_free, 4)


@pytest.mark.task(4, 3)
def test_a_token_takes_a_block_only_where_the_last_one_is_full(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    table = blocks.allocate(7)
    check("copies for token 7", blocks.append(table, 7, 8), [])
    check("blocks of 8 tokens", table, [0, 1])
    check("copies for token 8", blocks.append(table, 8, 9), [])
    check("blocks of 9 tokens", table, [0, 1, 2])


@pytest.mark.task(4, 3)
def test_a_chunk_takes_all_the_blocks_that_it_reaches_into(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    table = blocks.allocate(3)
    blocks.append(table, 3, 13)
    check("blocks of 13 tokens", table, [0, 1, 2, 3])


@pytest.mark.task(4, 3)
def test_the_first_to_write_to_a_shared_block_copies_it_and_the_last_owner_writes_in_place(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    check("copies for the child's token 10", blocks.append(child, 10, 11), [(2, 3)])
    check("blocks of the child", child, [0, 1, 3])
    check("copies for the parent's token 10", blocks.append(parent, 10, 11), [])
    check("blocks of the parent", parent, [0, 1, 2])
    check("free blocks", blocks.num_free, 4)


@pytest.mark.task(4, 3)
def test_a_copied_block_comes_back_when_each_has_left(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    blocks.append(child, 10, 11)
    blocks.free(child)
    blocks.free(parent)
    check("free blocks", blocks.num_free, 8)


@pytest.mark.task(4, 3)
def test_full_shared_blocks_are_never_copied(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(8)
    child = blocks.fork(parent)
    check("copies for the child's token 8", blocks.append(child, 8, 9), [])
    check("copies for the parent's token 8", blocks.append(parent, 8, 9), [])
    check("blocks of child and parent", (child, parent), ([0, 1, 2], [0, 1, 3]))


@pytest.mark.task(4, 3)
def test_a_chunk_copies_the_shared_block_that_it_begins_in_and_takes_new_ones_behind(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(6)
    child = blocks.fork(parent)
    copies = blocks.append(child, 6, 13)
    check("blocks copied", [source for source, _ in copies], [1])
    check("the copy is the child's own", [target for _, target in copies] == [child[1]], True)
    check("block of the child's first tokens", child[0], 0)
    check("blocks that the child took", sorted(child[1:]), [2, 3, 4])


@pytest.mark.task(4, 3)
def test_every_shared_block_that_will_be_written_is_copied(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    check("copies for the child's tokens 2 to 9", blocks.append(child, 2, 10), [(0, 3), (1, 4), (2, 5)])
    check("blocks of the child", child, [3, 4, 5])
    check("copies for the parent's tokens 2 to 9", blocks.append(parent, 2, 10), [])
    check("free blocks", blocks.num_free, 2)


@pytest.mark.task(4, 3)
def test_a_shared_block_behind_the_last_token_that_will_be_written_stays_shared(check):
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(12)
    child = blocks.fork(parent)
    check("copies for the child's token 2", blocks.append(child, 2, 3), [(0, 3)])
    check("blocks of the child", child, [3, 1, 2])


@pytest.mark.task(4, 3)
def test_an_append_that_does_not_fit_changes_nothing(check):
    blocks = BlockManager(num_blocks=4, block_size=4)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    with pytest.raises(OutOfBlocks):
        blocks.append(child, 10, 13)
    check("blocks of the child", child, [0, 1, 2])
    check("free blocks", blocks.num_free, 1)
    check("copies for the child's token 10", blocks.append(child, 10, 12), [(2, 3)])


def test_the_blocks_that_an_append_will_take_are_counted_copies_included():
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(10)
    blocks.fork(parent)
    assert [blocks.blocks_to_append(parent, 10, end) for end in (11, 12, 13, 17)] == [1, 1, 2, 3]


def test_when_blocks_run_out_nothing_is_taken():
    blocks = BlockManager(num_blocks=4, block_size=4, swap_blocks=2)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    with pytest.raises(OutOfBlocks, match="9 tokens need 3 blocks, and 1 are free"):
        blocks.allocate(9)
    with pytest.raises(OutOfBlocks, match="tokens 10 to 13 need 2 more blocks, and 1 are free"):
        blocks.append(child, 10, 13)
    with pytest.raises(OutOfBlocks, match="3 blocks are to be moved, and 2 are free"):
        blocks.swap_out([parent, child])
    assert parent == child == [0, 1, 2]
    blocks.check_integrity([parent, child])
    with pytest.raises(OutOfBlocks, match="all 0 blocks are in use"):
        BlockPool(0).take()


def test_a_swap_keeps_shared_blocks_shared():
    blocks = BlockManager(num_blocks=5, block_size=4, swap_blocks=9)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    blocks.append(child, 10, 11)  # parent 0 1 2, child 0 1 3
    assert blocks.swap_out([parent, child]) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert (parent, child) == ([0, 1, 2], [0, 1, 3])
    assert (blocks.num_free, blocks.host.num_free) == (5, 5)
    taken = blocks.allocate(4)
    assert sorted(blocks.swap_in([parent, child])) == [(0, parent[0]), (1, parent[1]), (2, parent[2]), (3, child[2])]
    assert parent[:2] == child[:2]
    assert parent[2] != child[2]
    blocks.check_integrity([parent, child, taken])


def test_a_table_that_was_swapped_out_is_freed_on_the_host():
    blocks = BlockManager(num_blocks=4, block_size=4, swap_blocks=4)
    table = blocks.allocate(16)
    blocks.swap_out([table])
    blocks.free_swapped(table)
    assert (blocks.num_free, blocks.host.num_free, table) == (4, 4, [])


def test_a_block_freed_twice_or_shared_when_free_is_named():
    blocks = BlockManager(num_blocks=4, block_size=4)
    with pytest.raises(ValueError, match="block 0 is free already; it was released twice"):
        blocks.free([0])
    with pytest.raises(ValueError, match="block 0 is free; only a block in use can be shared"):
        blocks.fork([0])


@pytest.mark.parametrize(
    "owned",
    [[[0, 1]], [[0, 1, 2], [2]], [[0, 1, 3]], []],
    ids=["a block lost", "owned twice", "a free one", "all lost"],
)
def test_tables_that_do_not_match_the_counts_are_found(owned):
    blocks = BlockManager(num_blocks=4, block_size=4)
    blocks.check_integrity([blocks.allocate(12)])
    with pytest.raises(AssertionError, match="reference counts"):
        blocks.check_integrity(owned)


def test_a_free_block_that_cannot_be_handed_out_is_found():
    blocks = BlockManager(num_blocks=4, block_size=4)
    table = blocks.allocate(12)
    blocks.device._free.clear()
    with pytest.raises(AssertionError, match=r"free blocks \[\], but \[3\] are unowned"):
        blocks.check_integrity([table])


# Where a token lies: block * block_size + offset.


@pytest.mark.task(4, 4)
def test_a_token_lies_in_the_block_that_its_table_names_at_the_offset_that_is_left(check):
    table = np.array([[7, 1, 4]])
    slots = slots_of(np.zeros(10, dtype=np.int64), np.arange(10), table, 4)
    check("slots of positions 0 to 9", slots, [28, 29, 30, 31, 4, 5, 6, 7, 16, 17], axes=("position",))
    check("type of the slots", slots.dtype.kind, "i")


@pytest.mark.task(4, 4)
def test_each_token_is_looked_up_in_its_own_sequence_s_table(check):
    rows, positions = np.array([0, 0, 1]), np.array([3, 4, 0])
    tables = np.array([[5, 2], [3, -1]])
    check("slots of three tokens", slots_of(rows, positions, tables, 4), [23, 8, 12], axes=("token",))


@pytest.mark.task(4, 4)
@pytest.mark.parametrize(
    ("block_size", "table", "slots"), [(1, [8, 9, 0, 6], [9, 0, 6]), (2, [0, 6], [1, 12, 13]), (8, [9], [73, 74, 75])]
)
def test_blocks_may_have_any_size(check, block_size, table, slots):
    found = slots_of(np.zeros(3, dtype=np.int64), np.array([1, 2, 3]), np.array([table]), block_size)
    check("slots of positions 1 to 3", found, slots, axes=("token",))


@pytest.mark.task(4, 4)
def test_a_chunk_and_a_decode_are_laid_out_behind_each_other(check):
    starts, lengths = np.array([2, 7]), np.array([4, 1])
    positions, layout = page_layout(starts, lengths, [[6, 3], [0, 9]], 4)
    check("positions", positions, [2, 3, 4, 5, 7], axes=("token",))
    check("slots", layout.slots, [26, 27, 12, 13, 39], axes=("token",))


# Attention over pages. Everything that no token was stored in is NaN.

ASKED = request("A", 24, 1)
POOL = PagedMemory(num_blocks=80, block_size=4)


def blocks_in_disorder(memory, seed=0):
    """All blocks of a pool, shuffled."""
    return torch.randperm(memory.num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()


def small_cache():
    return PagedCache(TINY, PagedMemory(num_blocks=3, block_size=4), torch.float64, fill=torch.nan)


@pytest.mark.task(4, 5)
def test_each_token_is_stored_in_its_slot_of_its_layer_and_nowhere_else(check):
    cache = small_cache()
    seeded = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 2, TINY.kv_heads, TINY.head_dim, dtype=torch.float64, generator=seeded)
    expected_k, expected_v = cache.k.clone(), cache.v.clone()
    for token, (block, offset) in enumerate([(2, 1), (0, 3)]):
        expected_k[1, block, :, offset], expected_v[1, block, :, offset] = k[token], v[token]
    cache.store(1, k, v, np.array([9, 3]))
    axes = ("layer", "block", "head", "offset", "element")
    check("keys", cache.k, expected_k, axes)
    check("values", cache.v, expected_v, axes)


@pytest.mark.task(4, 5)
@pytest.mark.parametrize("length", [1, 4, 6, 8])
def test_gathered_keys_and_values_stand_in_order_without_what_lies_behind_them(check, length):
    cache = small_cache()
    for position, (block, offset) in enumerate([(2, 0), (2, 1), (2, 2), (2, 3), (0, 0), (0, 1), (0, 2), (0, 3)]):
        for head in range(TINY.kv_heads):
            cache.k[1, block, head, offset] = 10 * position + head
            cache.v[1, block, head, offset] = -10 * position - head
    keys, values = cache.gather(1, np.array([2, 0, -1]), length)
    shape = [length, TINY.kv_heads, TINY.head_dim]
    check("shapes of keys and values", [list(keys.shape), list(values.shape)], [shape, shape])
    expected = [[10 * position + head for head in range(TINY.kv_heads)] for position in range(length)]
    check("keys", keys[:, :, 0], [list(map(float, row)) for row in expected], axes=("position", "head"))
    check("values", values[:, :, 0], [[-float(each) for each in row] for row in expected], axes=("position", "head"))


@pytest.mark.task(4, 5)
def test_entries_of_a_table_beyond_the_length_are_not_looked_up(check):
    shape = [3, TINY.kv_heads, TINY.head_dim]
    check("shape of the keys of 3 tokens, in a pool of 3 blocks", gathered_shape(small_cache(), [2, 3, 9], 3), shape)


def gathered_shape(cache, table, length):
    try:
        return list(cache.gather(0, np.array(table), length)[0].shape)
    except IndexError:
        return "IndexError"


@pytest.mark.task(4, 5)
def test_a_token_looks_at_itself_too(check):
    cache = small_cache()
    for block in range(3):
        cache.k[:, block] = cache.v[:, block] = 100 + block
    q, k = torch.ones(2, 1, TINY.num_heads, TINY.head_dim, dtype=torch.float64)
    v = torch.full((1, TINY.kv_heads, TINY.head_dim), 7, dtype=torch.float64)
    _, layout = page_layout(np.array([0]), np.array([1]), [[2]], 4)
    out = cache.attend(layout)(1, q, k[:, : TINY.kv_heads], v)
    expected = [[7.0] * TINY.head_dim] * TINY.num_heads
    check("attention of a sequence's first token", out[0], expected, axes=("head", "element"))


@pytest.mark.task(4, 5)
@pytest.mark.parametrize("block_size", [1, 3, 4, 24, 32])
@pytest.mark.parametrize("lengths", [[24], [1] * 24, [5, 1, 1, 9, 8]], ids=str)
def test_logits_over_shuffled_pages_equal_uncached_ones(check, block_size, lengths):
    model = tiny(0)
    memory = replace(POOL, block_size=block_size)
    sequence = Sequence(ASKED, memory=blocks_in_disorder(memory))
    logits = teacher_forced(model, real_cache(model, memory), sequence, lengths)
    check("logits", logits, lambda: uncached_logits(model, ASKED.prompt_token_ids), axes=("position", "token id"))


@pytest.mark.task(4, 5)
def test_a_prompt_a_chunk_and_a_decode_share_one_pass(check):
    model = tiny(0)
    cache = real_cache(model, POOL)
    order = blocks_in_disorder(POOL)
    asked = [request("A", 9, 1), request("B", 11, 1), request("C", 6, 1)]
    prompt, chunk, decode = (Sequence(each, memory=order[3 * i : 3 * i + 3]) for i, each in enumerate(asked))
    compute(model, cache, chunk, 2)
    compute(model, cache, decode, 5)
    inputs = cache.lower(Batch((next_span(prompt), next_span(chunk, limit=7), next_span(decode))))
    with torch.inference_mode():
        logits = model.logits(model(inputs.token_ids, inputs.positions, inputs.attend))

    def alone():
        a, b, c = (uncached_logits(model, each.prompt_token_ids) for each in asked)
        return torch.cat([a, b[2:9], c[5:]])

    check("logits of A's 9 tokens, B's 7 and C's last", logits, alone, axes=("token", "token id"))


@pytest.mark.task(4, 3)
@pytest.mark.task(4, 4)
@pytest.mark.task(4, 5)
def test_samples_that_share_their_prompt_s_blocks_get_the_tokens_of_the_oracle(check):
    model = tiny(0)
    asked = [request("A", 6, 8, params={"n": 3, "temperature": 1.0, "seed": 1}), request("B", 9, 5)]
    scheduler = VLLM(PagedMemory(num_blocks=20, block_size=4))
    tokens = tokens_of(real(model, scheduler, asked).run())
    check("tokens", tokens, lambda: oracle(model, asked), axes=("sequence", "position"))


def test_pages_are_swapped_out_before_others_come_in_and_copied_last():
    cache = PagedCache(TINY, PagedMemory(num_blocks=2, block_size=4, swap_blocks=2), torch.float64)
    for pages, first in ((cache.k, 1), (cache.v, 1), (cache.swapped_k, 11), (cache.swapped_v, 11)):
        pages[:, 0], pages[:, 1] = first, first + 1
    cache.apply(BlockMoves(swap_out=((0, 0),), swap_in=((1, 0),), copies=((0, 1),)))
    for device, host in ((cache.k, cache.swapped_k), (cache.v, cache.swapped_v)):
        assert [device[:, block].unique().tolist() for block in (0, 1)] == [[12], [12]]
        assert [host[:, block].unique().tolist() for block in (0, 1)] == [[1], [12]]


def lose_a_row(cache, table):
    """Token 5 was never stored."""
    cache.k[:, table[1], :, 1] = 0
    cache.v[:, table[1], :, 1] = 0


def swap_two_values(cache, table):
    """The values of tokens 3 and 4, in two blocks, changed places."""
    cache.v[:, table[:2], :, [3, 0]] = cache.v[:, table[1::-1], :, [0, 3]]


def scribble_on_own_blocks(cache, table):
    """Someone else wrote to the sequence's blocks."""
    cache.k[:, table[2]] += 1
    cache.v[:, table[2]] += 1


def scribble_on_all_others(cache, table):
    """All blocks but the sequence's, and the unused tail of its last one, were overwritten."""
    others = sorted(set(range(POOL.num_blocks)) - set(table))
    for pages in (cache.k, cache.v):
        pages[:, others] = 7.0
        pages[:, table[-1], :, 3:] = 7.0


def answer(model, damage=lambda cache, table: None):
    """The tokens that follow a prompt whose 23 cached tokens, in 6 blocks, were damaged before the first decode."""
    cache = real_cache(model, POOL)
    table = blocks_in_disorder(POOL)[:18]
    sequence = Sequence(ASKED, memory=table)
    compute(model, cache, sequence, 23)
    damage(cache, table[:6])
    return generate_greedily(model, cache, sequence, 48)


@pytest.mark.parametrize("seed", range(5))
def test_one_damaged_row_changes_at_least_half_of_what_follows(seed):
    model = tiny(seed)
    whole = answer(model)
    for damage in (lose_a_row, swap_two_values, scribble_on_own_blocks):
        assert changed(whole, answer(model, damage)) >= 1 / 2


def test_scribbling_where_no_token_of_the_sequence_lies_changes_nothing():
    model = tiny(0)
    assert answer(model, scribble_on_all_others) == answer(model)


# The online softmax of the CPU kernel: tile after tile, then part beside part.


def softmax_average(scores, values):
    """Attention at once: scores ``[vectors, keys]``, values ``[keys, head_dim]``."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ values / weights.sum(axis=1, keepdims=True)


def by_tiles(scores, values, tile):
    """The same, tile after tile, as the kernel does it; only ``rescale`` is the kernel's own."""
    vectors, keys = scores.shape
    maximum, total, summed = np.full(vectors, -np.inf), np.zeros(vectors), np.zeros((vectors, values.shape[1]))
    for start in range(0, keys, tile):
        weights = scores[:, start : start + tile].copy()
        new_maximum = np.maximum(maximum, weights.max(axis=1))
        attention.rescale(weights, np.full(vectors, weights.shape[1]), new_maximum, maximum, total, summed)
        summed += weights @ values[start : start + tile]
    return summed / total[:, None]


@pytest.mark.task(4, 6)
def test_the_first_tile_becomes_exponentials_below_its_maximum(check):
    weights = np.array([[1.0, 3.0, 2.0, np.nan]])  # the fourth key is not visible
    maximum, total, summed = np.array([-np.inf]), np.zeros(1), np.zeros((1, 2))
    attention.rescale(weights, np.array([3]), np.array([3.0]), maximum, total, summed)
    check("weights", weights[0, :3], np.exp([-2.0, 0.0, -1.0]), axes=("key",))
    check("running maximum", maximum, [3.0])
    check("running total", total, [float(np.exp([-2.0, 0.0, -1.0]).sum())])


@pytest.mark.task(4, 6)
def test_a_higher_maximum_shrinks_what_earlier_tiles_left(check):
    maximum, total, summed = np.array([1.0]), np.array([2.0]), np.array([[4.0, -8.0]])
    attention.rescale(np.array([[3.0, 2.0]]), np.array([2]), np.array([3.0]), maximum, total, summed)
    check("running maximum", maximum, [3.0])
    check("running total", total, [float(2 * np.exp(-2.0) + 1 + np.exp(-1.0))])
    check("running weighted sum", summed[0], np.array([4.0, -8.0]) * np.exp(-2.0), axes=("element",))


@pytest.mark.task(4, 6)
def test_a_row_that_sees_nothing_of_a_tile_stays_as_it_is(check):
    maximum, total, summed = np.array([1.0, -np.inf]), np.array([2.0, 0.0]), np.array([[4.0], [0.0]])
    nothing = np.full((2, 3), np.nan)
    attention.rescale(nothing, np.array([0, 0]), maximum.copy(), maximum, total, summed)
    state = [maximum, total, summed[:, 0]]
    check("maximum, total and weighted sum of two rows", state, [[1.0, -np.inf], [2.0, 0.0], [4.0, 0.0]])


@pytest.mark.task(4, 6)
@pytest.mark.parametrize("tile", [1, 3, 8, 24])
def test_tile_after_tile_gives_the_softmax_over_all_keys(check, tile):
    rng = np.random.default_rng(0)
    scores, values = 4 * rng.standard_normal((3, 24)), rng.standard_normal((24, 2))
    check("attention", by_tiles(scores, values, tile), softmax_average(scores, values), axes=("row", "element"))


@pytest.mark.task(4, 6)
def test_scores_beyond_the_range_of_exp_do_not_overflow(check):
    scores = np.array([[1000.0, 0.0, 2000.0, 1999.0], [-1000.0, -999.0, -2000.0, -998.0]])
    values = np.array([[1.0], [2.0], [3.0], [4.0]])
    check("attention", by_tiles(scores, values, 2), softmax_average(scores, values), axes=("row", "element"))


def by_parts(scores, values, parts):
    """Attention to each part of the keys alone, and these put together; only ``combine`` is the kernel's own."""
    pieces = list(zip(np.split(scores, parts, axis=1), np.split(values, parts), strict=True))
    partial = np.stack([softmax_average(*piece) for piece in pieces])[:, :, None]
    largest = [piece.max(axis=1) for piece, _ in pieces]
    sums = [np.exp(piece - top[:, None]).sum(axis=1) for (piece, _), top in zip(pieces, largest, strict=True)]
    log_sums = (np.stack(largest) + np.log(np.stack(sums)))[:, :, None]
    out = np.full(partial.shape[1:], np.nan)
    attention.combine(partial, log_sums, out)
    return out[:, 0]


@pytest.mark.task(4, 6)
@pytest.mark.parametrize("parts", [1, 2, 6])
def test_part_beside_part_gives_the_softmax_over_all_keys(check, parts):
    rng = np.random.default_rng(0)
    scores, values = 4 * rng.standard_normal((3, 24)), rng.standard_normal((24, 2))
    check("attention", by_parts(scores, values, parts), softmax_average(scores, values), axes=("row", "element"))


@pytest.mark.task(4, 6)
def test_parts_whose_sums_are_beyond_the_range_of_exp_do_not_overflow(check):
    scores = np.array([[1000.0, 0.0, 2000.0, 1999.0], [-1000.0, -999.0, -2000.0, -998.0]])
    values = np.array([[1.0], [2.0], [3.0], [4.0]])
    check("attention", by_parts(scores, values, 2), softmax_average(scores, values), axes=("row", "element"))


@pytest.mark.task(4, 6)
def test_a_part_that_a_row_does_not_see_is_not_read(check):
    partial = np.array([[[[1.0, 2.0]], [[np.nan, np.nan]]], [[[np.nan, np.nan]], [[np.nan, np.nan]]]])
    log_sums = np.array([[[3.0], [-np.inf]], [[-np.inf], [-np.inf]]])
    out = np.full((2, 1, 2), np.nan)
    attention.combine(partial, log_sums, out)
    check("a row that sees one part, and a row that sees none", out[:, 0], [[1.0, 2.0], [0.0, 0.0]], axes=("row",))
