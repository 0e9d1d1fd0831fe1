"""Figures show what records hold; what every pass did is counted here, and how it looks is for eyes."""

from dataclasses import replace
from itertools import pairwise

import pytest

pytest.importorskip("matplotlib", reason="figures need the extra notebooks")

from harness import POLICIES, request, simulated

from minillm.metrics import summarise
from minillm.report.activity import Activity, activities, by_pass, pass_tokens
from minillm.report.figures import block_map_figure, comparison_figure, queue_figure, timeline_figure
from minillm.report.house import LOOKS, SIGNS

W0 = [("A", 7, 6), ("B", 7, 6), ("C", 3, 4)]
STATIC = {"max_batch_size": 3, "columns": 13}
VLLM = {"num_blocks": 6, "block_size": 4, "watermark": 1}
SPLITFUSE = {"num_blocks": 6, "block_size": 4, "token_budget": 8}


def record(policy, options, requests=W0):
    engine = simulated(POLICIES[policy](**options), [request(*entry) for entry in requests])
    engine.run()
    return replace(engine.recording(policy), capacity=24)


def did(recording):
    """What each sequence did, as (activity, passes, start, tokens per pass, padding per pass)."""
    found = activities(recording)
    return {
        name: [(s.activity.value, s.passes, s.start, s.tokens, s.padding) for s in found.stretches if s.row == row]
        for row, name in enumerate(found.sequences)
    }


def test_padding_and_held_rows_belong_to_the_rows_that_cause_them():
    assert did(record("static", STATIC)) == {
        "A": [("prefill", 1, 0, 7, 0), ("decode", 5, 7, 1, 0)],
        "B": [("prefill", 1, 0, 7, 0), ("decode", 5, 7, 1, 0)],
        "C": [("prefill", 1, 0, 3, 4), ("decode", 3, 3, 1, 0), ("held row", 2, 0, 0, 1)],
    }


def test_what_a_preemption_dropped_is_recomputed():
    recording = record("vllm", VLLM)
    assert did(recording)["C"] == [
        ("prefill", 1, 0, 3, 0),
        ("decode", 1, 3, 1, 0),
        ("waiting", 4, 0, 0, 0),
        ("recompute", 1, 0, 5, 0),
        ("decode", 1, 5, 1, 0),
    ]
    assert [(m.place, m.row, m.kind) for m in activities(recording).moments] == [
        (2, 2, "preempted"),
        (3, 1, "preempted"),
    ]


def test_a_prompt_is_chunks_until_its_last_pass():
    assert did(record("splitfuse", SPLITFUSE))["C"][:3] == [
        ("waiting", 1, 0, 0, 0),
        ("chunk", 1, 0, 1, 0),
        ("prefill", 1, 1, 2, 0),
    ]


def test_an_answer_that_no_pass_computes_any_more_is_held_back():
    assert did(record("ragged", STATIC))["C"][-1] == ("held back", 2, 0, 0, 0)


def test_a_swapped_sequence_is_swapped_until_it_comes_back():
    pairs = [request("A", 9, 14, params={"n": 2}), request("B", 7, 14, params={"n": 2})]
    engine = simulated(POLICIES["vllm"](num_blocks=14, block_size=4, swap_blocks=12, watermark=0), pairs)
    engine.run()
    recording = engine.recording("vllm")
    [out, back] = [m.place for m in activities(recording).moments if m.row == 2]
    [swapped] = [s for s in activities(recording).stretches if s.row == 2 and s.activity is Activity.SWAPPED]
    assert (swapped.first, swapped.last) == (out, back)


def pipelined():
    """Three batches of one sequence in a pipeline of three stages; D waits until A has ended."""
    requests = [request(name, 4, 2) for name in "ABCD"]
    engine = simulated(POLICIES["orca"](max_bs=1, n_slots=18), requests, cost=lambda batch: 3.0, depth=3)
    engine.run()
    return replace(engine.recording("orca"), capacity=18)


def test_while_its_own_pass_is_on_its_way_a_sequence_is_in_flight_and_does_not_wait():
    recording = pipelined()
    assert [(step.start, step.end) for step in recording.steps[:4]] == [(0, 3), (0, 4), (0, 5), (3, 6)]
    assert [(activity, passes) for activity, passes, *_ in did(recording)["A"]] == [
        ("prefill", 1),
        ("in flight", 2),
        ("decode", 1),
    ]
    assert did(recording)["D"][0][:2] == ("waiting", 6)


def test_in_time_a_bar_covers_all_of_its_pass_and_tokens_of_passes_that_overlap_stand_side_by_side():
    rows, tokens = timeline_figure(pipelined(), axis="time").axes

    def spans(axes):
        boxes = [path.get_extents() for artist in axes.collections for path in artist.get_paths() if len(path) == 5]
        return sorted((box.x0, box.x1) for box in boxes)

    assert (0, 5) in spans(rows)
    assert all(left[1] <= right[0] for left, right in pairwise(spans(tokens)))
    assert labels(timeline_figure(pipelined(), axis="time")) == ["prefill", "decode", "waiting"]
    assert labels(timeline_figure(pipelined())) == ["prefill", "decode", "waiting", "in flight"]


@pytest.mark.parametrize(("policy", "options"), [("static", STATIC), ("vllm", VLLM), ("splitfuse", SPLITFUSE)])
def test_the_tokens_of_a_pass_add_up(policy, options):
    recording = record(policy, options)
    places = by_pass(activities(recording), len(recording.steps))
    spent = [pass_tokens(step, mine) for step, mine in zip(recording.steps, places, strict=True)]
    assert [sum(tokens.values()) for tokens in spent] == [step.computed_tokens for step in recording.steps]


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_the_legend_names_what_occurs_and_nothing_else():
    assert labels(timeline_figure(record("static", STATIC))) == ["prefill", "decode", "held row", "padding"]
    assert labels(timeline_figure(record("vllm", VLLM))) == ["prefill", "decode", "recompute", "waiting", "preempted"]


def test_all_activities_but_two_differ_in_hatch_or_height():
    """Prefill and decode are both plain."""
    looks = {(look.hatch, look.height) for look in LOOKS.values()}
    assert len(looks) == len(LOOKS) - 1
    assert len({sign.marker for sign in SIGNS.values()}) == len(SIGNS)


def test_prefill_and_decode_differ_in_grey():
    def grey(fill):
        red, green, blue = (int(fill[place : place + 2], 16) for place in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    assert grey(LOOKS[Activity.DECODE].fill) - grey(LOOKS[Activity.PREFILL].fill) > 80


@pytest.mark.parametrize("axis", ["passes", "time"])
def test_the_axis_ends_with_the_last_pass(axis):
    recording = record("vllm", VLLM)
    for figure in (timeline_figure(recording, axis=axis), queue_figure(recording, axis=axis)):
        right = figure.axes[0].get_xlim()[1]
        assert right == (8.5 if axis == "passes" else recording.steps[-1].end)


def test_many_sequences_are_thinned_and_the_title_says_so():
    figure = timeline_figure(record("static", STATIC), max_rows=2)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["A", "C"]
    assert figure.axes[0].get_title(loc="left") == "static: 2 of 3 sequences, 6 passes"


def test_passes_outside_the_run_are_refused():
    with pytest.raises(ValueError, match="vllm has 9 passes, and none of them is to be drawn"):
        timeline_figure(record("vllm", VLLM), passes=range(9, 12))


def test_a_block_of_two_sequences_names_both_and_the_free_ones_are_counted():
    figure = block_map_figure({"A": [0, 1], "B": [0, 3]}, 8, block_size=4, filled={"A": 6, "B": 8})
    words = [text.get_text() for text in figure.axes[1].texts]
    assert "A:0\nB:0" in words
    assert "A:1" in words
    assert "8 blocks, 5 free" in figure.axes[1].get_title(loc="left")


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        ({"A": [8]}, {}, "A owns block 8, and the cache has blocks 0 to 7"),
        ({"A": [1]}, {"filled": {"A": 1}}, "filled is given without block_size"),
        ({"A": [1]}, {"filled": {"A": 5}, "block_size": 4}, "A has 5 tokens, and its 1 blocks hold 4"),
    ],
)
def test_impossible_block_tables_are_refused(tables, options, message):
    with pytest.raises(ValueError, match=message):
        block_map_figure(tables, 8, **options)


def test_runs_of_one_policy_are_joined():
    summaries = [summarise(record("vllm", VLLM)), summarise(record("static", STATIC)), summarise(record("vllm", VLLM))]
    [legend] = [axes.get_legend() for axes in comparison_figure(summaries).axes]
    assert [text.get_text() for text in legend.get_texts()] == ["vllm", "static"]


def test_a_notebook_shows_a_figure_as_a_picture_without_pyplot():
    formatters = pytest.importorskip("IPython.core.formatters")
    data, _ = formatters.DisplayFormatter().format(block_map_figure({"A": [0, 1]}, 4))
    assert data["image/png"].startswith(b"\x89PNG")


def test_a_picture_shows_itself_and_is_the_same_each_time():
    first, second = (timeline_figure(record("vllm", VLLM))._repr_png_() for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG")
