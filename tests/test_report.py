"""Reports show what the records hold, and fit a terminal of 80 columns."""

from dataclasses import replace

import pytest
from harness import POLICIES, request, simulated
from rich.console import Console

from minillm.comparison import Difference
from minillm.metrics import summarise
from minillm.report.agreement import agreement, unfinished
from minillm.report.table import comparison
from minillm.report.timeline import Mark, Timeline, compressed, legend

W0 = [("A", 7, 6), ("B", 7, 6), ("C", 3, 4)]
STATIC = {"max_batch_size": 3, "columns": 13}


def record(policy, options, requests=W0):
    engine = simulated(POLICIES[policy](**options), [request(*entry) for entry in requests])
    engine.run()
    return engine.recording(policy)


def printed(*renderables, width=80):
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        for renderable in renderables:
            console.print(renderable)
    return capture.get().splitlines()


def rows(recording, **options):
    """The timeline's lines without its heading."""
    return [line.rstrip() for line in printed(Timeline(recording, **options))[1:]]


def test_static_batching_holds_the_row_that_ends_first():
    assert rows(record("static", STATIC)) == ["A P-----", "B P-----", "C P---xx"]


def test_ragged_batches_hold_the_answer_back_but_compute_no_row_for_it():
    assert rows(record("ragged", STATIC)) == ["A P-----", "B P-----", "C P---::"]


def test_vllm_preempts_the_latest_and_computes_its_prompt_again():
    recording = record("vllm", {"num_blocks": 6, "block_size": 4, "watermark": 1})
    assert rows(recording) == ["A P-----", "B P--!..P--", "C P-!...P-"]


def test_splitfuse_cuts_prompts_and_passes_over_whoever_has_no_block():
    recording = record("splitfuse", {"num_blocks": 6, "block_size": 4, "token_budget": 8})
    assert rows(recording) == ["A P-----", "B pP-...----", "C .pP-..--"]


def test_a_request_that_has_not_arrived_does_not_wait():
    late = record("orca", {"max_bs": 1, "n_slots": 24}, [("A", 2, 4)])
    shifted = replace(late, requests=(replace(late.requests[0], arrival=1.5),))
    assert rows(shifted) == ["A P---"]
    waits = replace(late, requests=(*late.requests, replace(late.requests[0], id="B", arrival=1.5)))
    assert rows(waits) == ["A P---", "B   .."]


def test_branches_have_rows_of_their_own():
    engine = simulated(POLICIES["vllm"](num_blocks=9, block_size=4), [request("A", 3, 3, params={"n": 2})])
    engine.run()
    assert rows(engine.recording("vllm")) == ["A.0 P--", "A.1 .--"]


def test_a_refused_request_is_not_drawn():
    recording = record("orca", {"max_bs": 1, "n_slots": 24}, [("A", 2, 2)])
    refused = replace(recording.requests[0], id="B", refused="too long")
    assert rows(replace(recording, requests=(*recording.requests, refused))) == ["A P-"]


def test_a_shared_column_shows_its_most_telling_pass():
    marks = [Mark.DECODE, Mark.PREEMPTED, Mark.WAITING, Mark.PREFILL, Mark.DECODE]
    assert compressed(marks, 2) == [Mark.PREEMPTED, Mark.PREFILL, Mark.DECODE]


@pytest.mark.parametrize("width", [30, 80])
def test_long_runs_are_compressed_to_the_width(width):
    recording = record("single", {"columns": 200}, [(f"r{index:02}", 5, 40) for index in range(20)])
    lines = printed(Timeline(recording, max_rows=6), width=width)
    assert max(map(len, lines)) <= width
    assert [line[:3] for line in lines[-6:]] == ["r00", "r04", "r08", "r11", "r15", "r19"]
    assert f"a column is {-(-800 // (width - 4))} passes" in " ".join(line.strip() for line in lines[:-6])


def test_glyphs_tell_the_marks_apart_without_colour():
    glyphs = [mark.glyph for mark in Mark]
    assert len(set(glyphs)) == len(glyphs)
    (line,) = printed(legend())
    assert all(mark.glyph in line and mark.meaning in line for mark in Mark)


def test_both_tables_fit_80_columns_with_every_figure_in_full():
    summary = summarise(record("vllm", {"num_blocks": 6, "block_size": 4, "watermark": 1}))
    large = replace(summary, policy="orca-oracle", duration=12_345.6, output_tokens_per_s=123_456, preemptions=12_345)
    lines = printed(comparison([summary, large], "A run"))
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    text = " ".join(lines)
    assert all(figure in text for figure in ("orca-oracle", "12346", "123456", "12345", "3/3"))


def test_the_speed_up_is_against_the_first_policy():
    summary = summarise(record("single", {"columns": 20}))
    twice = replace(summary, policy="twice", output_tokens_per_s=2 * summary.output_tokens_per_s)
    (line,) = [line for line in printed(comparison([summary, twice], "")) if line.startswith("twice")][:1]
    assert line.split()[2] == "2.00"


def test_times_per_request_are_in_seconds_and_per_token_in_milliseconds():
    summary = summarise(record("single", {"columns": 20}, [("A", 2, 4)]))
    latency = [line for line in printed(comparison([summary], "")) if line.startswith("single")][1].split()
    assert latency[1:] == ["1.00", "1.00", "1000", "1000", "1000", "1000", "4.00", "4.00", "1.00"]


def test_what_was_not_measured_is_a_dash():
    summary = summarise(record("static", STATIC))
    latency = [line for line in printed(comparison([summary], "")) if line.startswith("static")][1].split()
    assert latency[3:7] == ["-"] * 4
    assert latency[-1] == "1.00"


def test_agreement_is_stated_and_every_difference_shown():
    near, far = (Difference("r7", 3, ("single", "vllm"), (11, 12), gap) for gap in (1e-6, 0.5))
    assert "identical" in " ".join(printed(agreement([], 8)))
    assert "near tie: r7, output token 3" in " ".join(printed(agreement([near], 2)))
    both = " ".join(printed(agreement([near, far], 2)))
    assert "error: r7" in both and "1 of 2" in both


def test_a_policy_that_left_requests_undone_is_named():
    summary = summarise(record("single", {"columns": 20}))
    assert printed(unfinished([summary])) == []
    assert "single completed 2 of 3" in " ".join(printed(unfinished([replace(summary, completed=2)])))
