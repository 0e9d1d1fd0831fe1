"""Lesson 4, paged attention: who owns which block, and attention that reads them in any order."""

from dataclasses import replace

import pytest
import torch
from harness import real_cache, request
from passes import changed, compute, generate_greedily, teacher_forced, uncached_logits

from minillm.batch import Batch, BlockMoves, next_span
from minillm.cache.blocks import BlockManager, BlockPool, OutOfBlocks
from minillm.cache.memory import PagedMemory
from minillm.cache.paged import PagedCache
from minillm.model.tiny import TINY, tiny
from minillm.sequence import Sequence

# The block manager: blocks of 4 tokens, the one freed last is handed out first.


def test_a_table_has_the_blocks_that_its_tokens_need():
    blocks = BlockManager(num_blocks=8, block_size=4)
    assert [blocks.blocks_for(tokens) for tokens in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]
    assert blocks.allocate(10) == [0, 1, 2]
    assert blocks.allocate(4) == [3]
    assert blocks.num_free == 4


def test_a_token_takes_a_block_only_where_the_last_one_is_full():
    blocks = BlockManager(num_blocks=8, block_size=4)
    table = blocks.allocate(7)
    assert blocks.append(table, 7, 8) == []
    assert table == [0, 1]
    assert blocks.append(table, 8, 9) == []
    assert table == [0, 1, 2]


def test_a_chunk_takes_all_the_blocks_that_it_reaches_into():
    blocks = BlockManager(num_blocks=8, block_size=4)
    table = blocks.allocate(3)
    blocks.append(table, 3, 13)
    assert table == [0, 1, 2, 3]


def test_freed_blocks_are_handed_out_again():
    blocks = BlockManager(num_blocks=8, block_size=4)
    first, second = blocks.allocate(8), blocks.allocate(8)
    blocks.free(first)
    assert first == []
    assert blocks.num_free == 6
    assert blocks.allocate(8) == [0, 1]
    blocks.check_integrity([[0, 1], second])


def test_a_fork_shares_every_block_until_its_last_owner_leaves():
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    assert child == parent == [0, 1, 2]
    assert child is not parent
    assert blocks.num_free == 5
    blocks.free(parent)
    assert blocks.num_free == 5
    blocks.free(child)
    assert blocks.num_free == 8


def test_the_first_to_write_to_a_shared_block_copies_it_and_the_last_owner_writes_in_place():
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(10)
    child = blocks.fork(parent)
    assert blocks.append(child, 10, 11) == [(2, 3)]
    assert child == [0, 1, 3]
    assert blocks.append(parent, 10, 11) == []
    assert parent == [0, 1, 2]
    blocks.check_integrity([parent, child])


def test_full_shared_blocks_are_never_copied():
    blocks = BlockManager(num_blocks=8, block_size=4)
    parent = blocks.allocate(8)
    child = blocks.fork(parent)
    assert blocks.append(child, 8, 9) == []
    assert blocks.append(parent, 8, 9) == []
    assert (child, parent) == ([0, 1, 2], [0, 1, 3])


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


def test_a_block_cannot_be_freed_twice_or_shared_when_free():
    blocks = BlockManager(num_blocks=4, block_size=4)
    table = blocks.allocate(4)
    stale = list(table)
    blocks.free(table)
    with pytest.raises(ValueError, match="block 0 is free already; it was released twice"):
        blocks.free(stale)
    with pytest.raises(ValueError, match="block 0 is free; only a block in use can be shared"):
        blocks.fork(stale)
    assert blocks.num_free == 4


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


# Attention over pages. Everything that no token was stored in is NaN.

ASKED = request("A", 24, 1)
POOL = PagedMemory(num_blocks=80, block_size=4)


def blocks_in_disorder(memory, seed=0):
    """All blocks of a pool, shuffled."""
    return torch.randperm(memory.num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("block_size", [1, 3, 4, 24, 32])
@pytest.mark.parametrize("lengths", [[24], [1] * 24, [5, 1, 1, 9, 8]], ids=str)
def test_logits_over_shuffled_pages_equal_uncached_ones(block_size, lengths):
    model = tiny(0)
    memory = replace(POOL, block_size=block_size)
    sequence = Sequence(ASKED, memory=blocks_in_disorder(memory))
    logits = teacher_forced(model, real_cache(model, memory), sequence, lengths)
    close(logits, uncached_logits(model, ASKED.prompt_token_ids))


def test_a_prompt_a_chunk_and_a_decode_share_one_pass():
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
    a, b, c = (uncached_logits(model, each.prompt_token_ids) for each in asked)
    close(logits, torch.cat([a, b[2:9], c[5:]]))


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
