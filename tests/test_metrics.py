"""Metrics of small recordings, each worked out by hand."""

from math import isnan

import pytest

from minillm.metrics import Distribution, recomputed_tokens, request_metrics, summarise
from minillm.records import EventRecord, Recording, RequestRecord, SpanRecord, StepRecord


def step(start, end, spans=(), **more):
    """A pass over ``(sequence, start, length)`` spans; all that it computes is useful unless told otherwise."""
    useful = sum(length for _, _, length in spans)
    fields = {
        "layout": "ragged",
        "held": (),
        "events": (),
        "computed_tokens": useful,
        "useful_tokens": useful,
        "context_tokens": 0,
        "swapped_out": 0,
        "swapped_in": 0,
        "copied": 0,
        "waiting": 0,
        "running": 0,
        "swapped": 0,
        "reserved_tokens": 0,
        "filled_tokens": 0,
    } | more
    records = tuple(SpanRecord(name, first, length, samples=1, prompt=0) for name, first, length in spans)
    return StepRecord(0, start, end, spans=records, **fields)


def emits(*tokens, finished=()):
    """Tokens computed and delivered in the same pass."""
    return {"sampled": tokens, "delivered": tokens, "finished": tuple((name, "length") for name in finished)}


def recording(requests, *steps, capacity=100):
    return Recording("some policy", capacity, tuple(requests), steps)


# A arrives at 1 with 5 prompt tokens and gets 3 tokens at 4, 6, 9; B arrives at 3 with 2 and gets its only one at 6.
STREAMED = recording(
    [RequestRecord("A", 1.0, 5, 3), RequestRecord("B", 3.0, 2, 1)],
    step(2, 4, [("A", 0, 5)], filled_tokens=0, reserved_tokens=16, **emits(("A", 1))),
    step(
        4, 6, [("A", 5, 1), ("B", 0, 2)], filled_tokens=5, reserved_tokens=32, **emits(("A", 1), ("B", 1), finished="B")
    ),
    step(6, 9, [("A", 6, 1)], filled_tokens=6, reserved_tokens=16, **emits(("A", 1), finished="A")),
)


def test_each_moment_of_a_streamed_request_is_counted_from_its_arrival():
    a, _ = request_metrics(STREAMED)
    assert (a.queue_time, a.ttft, a.ttft_computed, a.e2e_latency) == (1, 3, 3, 8)
    assert a.itl == (2, 3)
    assert a.tpot == pytest.approx((8 - 3) / (3 - 1))
    assert a.normalised_latency == pytest.approx(8 / 3)


def test_a_single_token_has_no_gap_and_no_time_per_output_token():
    _, b = request_metrics(STREAMED)
    assert (b.ttft, b.e2e_latency, b.itl, b.tpot) == (3, 3, (), None)


def test_throughput_counts_completed_work_from_the_first_arrival_to_the_last_delivery():
    summary = summarise(STREAMED)
    assert summary.duration == 8
    assert summary.requests_per_s == pytest.approx(2 / 8)
    assert summary.output_tokens_per_s == pytest.approx(4 / 8)
    assert summary.total_tokens_per_s == pytest.approx(11 / 8)


def test_gaps_are_pooled_and_times_per_token_leave_single_tokens_out():
    summary = summarise(STREAMED)
    assert summary.itl.mean == pytest.approx(2.5)
    assert summary.tpot.mean == pytest.approx(2.5)
    assert summary.ttft.mean == 3
    assert summary.normalised_latency.mean == pytest.approx((8 / 3 + 3) / 2)


def test_cache_use_is_weighted_by_the_time_of_the_passes():
    summary = summarise(STREAMED)
    assert summary.kv_filled == pytest.approx((0 * 2 + 5 * 2 + 6 * 3) / 7 / 100)
    assert summary.kv_reserved == pytest.approx((16 * 2 + 32 * 2 + 16 * 3) / 7 / 100)


def test_the_mean_batch_is_sequences_advanced_per_pass():
    assert summarise(STREAMED).mean_batch == pytest.approx(4 / 3)
    assert summarise(STREAMED).passes == 3


def test_percentiles_are_linear_between_the_samples():
    spread = Distribution.of([4.0, 1.0, 3.0, 2.0])
    assert (spread.mean, spread.p50) == (2.5, 2.5)
    assert (spread.p90, spread.p99) == pytest.approx((3.7, 3.97))


def test_no_sample_gives_no_number():
    assert isnan(Distribution.of([]).p50)


HELD_BACK = recording(
    [RequestRecord("A", 0.0, 4, 2), RequestRecord("B", 0.0, 1, 1)],
    step(
        0, 2, [("A", 0, 4), ("B", 0, 1)],
        computed_tokens=8, sampled=(("A", 1), ("B", 1)),
    ),
    step(
        2, 3, [("A", 4, 1)], held=("B",), computed_tokens=2, sampled=(("A", 1),),
        delivered=(("A", 2), ("B", 1)), finished=(("A", "length"), ("B", "length")),
    ),
)  # fmt: skip


def test_an_answer_held_back_has_its_first_token_at_its_end_and_was_computed_before():
    a, b = request_metrics(HELD_BACK)
    assert (a.ttft, a.e2e_latency, a.ttft_computed) == (3, 3, 2)
    assert (b.ttft, b.e2e_latency, b.ttft_computed) == (3, 3, 2)


def test_an_answer_delivered_at_once_has_no_time_per_output_token():
    assert request_metrics(HELD_BACK)[0].tpot is None


def test_padding_and_held_rows_are_waste():
    summary = summarise(HELD_BACK)
    assert summary.padding_share == pytest.approx(1 - 6 / 10)
    assert summary.mean_batch == pytest.approx((2 + 1) / 2)


def test_a_request_of_two_branches_begins_with_the_first_and_ends_with_the_last():
    branched = recording(
        [RequestRecord("A", 0.0, 3, 3, n=2)],
        step(0, 1, [("A.1", 0, 3)], **emits(("A.1", 1))),
        step(1, 2, [("A.1", 3, 1), ("A.0", 0, 3)], **emits(("A.0", 1), ("A.1", 1), finished=["A.1"])),
        step(2, 4, [("A.0", 3, 1)], **emits(("A.0", 1))),
        step(4, 5, [("A.0", 4, 1)], **emits(("A.0", 1), finished=["A.0"])),
    )
    (a,) = request_metrics(branched)
    assert (a.queue_time, a.ttft, a.ttft_computed, a.e2e_latency, a.output_tokens) == (0, 1, 1, 5, 5)
    assert sorted(a.itl) == [1, 1, 2]
    assert a.tpot == pytest.approx((5 - 1) / (3 - 1))
    assert a.normalised_latency == pytest.approx(5 / 3)


def test_recomputed_tokens_are_those_below_the_mark_that_a_preemption_dropped():
    steps = [
        step(0, 1, [("A", 0, 6)]),
        step(1, 2, [("A", 6, 1), ("B", 0, 3)]),
        step(2, 3, [("A", 7, 1)], events=(EventRecord("preempted", "B"),)),
        step(3, 4, [("A", 8, 1), ("B", 0, 4)]),
    ]
    assert recomputed_tokens(steps) == 3


def test_rejected_drafts_are_not_recomputed_tokens():
    assert recomputed_tokens([step(0, 1, [("A", 0, 5)]), step(1, 2, [("A", 5, 4)]), step(2, 3, [("A", 6, 4)])]) == 0


def test_a_swap_counts_as_a_preemption_and_recomputes_nothing():
    swap = (EventRecord("swapped out", "A"), EventRecord("swapped in", "A"))
    steps = [step(0, 1, [("A", 0, 5)]), step(1, 2, [("A", 5, 4)]), step(2, 3, [("A", 6, 1)], events=swap)]
    summary = summarise(recording([], *steps))
    assert (summary.preemptions, summary.recomputed_tokens) == (1, 0)


def test_a_step_that_computes_nothing_is_no_pass():
    reset = step(1, 1, events=(EventRecord("reset", "A"),))
    summary = summarise(recording([], step(0, 1, [("A", 0, 5)]), reset))
    assert (summary.passes, summary.mean_batch, summary.preemptions) == (1, 1, 1)


@pytest.mark.parametrize("reason", ["error", "expired", None])
def test_only_completed_requests_count(reason):
    ended = (("B", reason),) if reason else ()
    partial = recording(
        [
            RequestRecord("A", 0.0, 2, 1),
            RequestRecord("B", 0.0, 2, 5),
            RequestRecord("C", 0.0, 9, 9, refused="too long"),
        ],
        step(0, 2, [("A", 0, 2), ("B", 0, 2)], **emits(("A", 1), ("B", 1), finished="A")),
        step(2, 4, [("B", 2, 1)], sampled=(("B", 1),), finished=ended),
    )
    summary = summarise(partial)
    assert (summary.requests, summary.completed) == (3, 1)
    assert summary.output_tokens_per_s == pytest.approx(1 / 2)


def test_a_run_in_which_nothing_happened_has_zero_throughput():
    summary = summarise(recording([RequestRecord("A", 0.0, 2, 1)]))
    assert (summary.completed, summary.output_tokens_per_s, summary.kv_filled, summary.padding_share) == (0, 0, 0, 0)
