"""Drafts are verified in one pass, kept as far as they are right, and rolled back from there."""

import pytest
from harness import oracle, real, request, tokens_of

from minillm.batch import next_span
from minillm.model.tiny import tiny
from minillm.schedulers.orca import Orca, reserve_exact
from minillm.sequence import Sequence

MODEL = tiny(0)
DRAFTS = 3


class Guessing(Orca):
    """Orca whose sequences come with three drafts: as many right ones as told, then wrong ones."""

    def __init__(self, answers, right):
        super().__init__(max_bs=4, n_slots=400, reservation=lambda request: reserve_exact(request) + DRAFTS)
        self.answers = answers
        self.right = right

    def schedule(self, now):
        for sequence in self.running:
            if not sequence.in_flight:
                sequence.draft_token_ids = self.guess(sequence)
        return super().schedule(now)

    def guess(self, sequence):
        done = sequence.output_length
        answer = self.answers[sequence.name][done : done + self.right]
        return (*answer, *[(token + 1) % 256 for token in self.answers[sequence.name]][done + len(answer) :])[:DRAFTS]


def run(requests, right, depth=1):
    answers = oracle(MODEL, requests)
    engine = real(MODEL, Guessing(answers, right), requests, depth=depth)
    outputs = engine.run()
    engine.scheduler.check_integrity()
    return answers, outputs, engine.steps


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 7, "n": 2}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("right", range(DRAFTS + 1))
def test_drafts_right_or_wrong_leave_the_tokens_as_they_are(right, params, depth):
    requests = [
        request("A", 9, 14, params=params),
        request("B", 4, 10, params=params),
        request("C", 17, 3, params=params),
    ]
    answers, outputs, _ = run(requests, right, depth)
    assert tokens_of(outputs) == answers


def test_a_draft_that_is_right_twice_and_then_wrong_advances_by_three_and_is_computed_anew():
    _, outputs, steps = run([request("A", 9, 10)], right=2)
    assert [(span.start, span.length) for step in steps for span in step.spans] == [(0, 9), (9, 4), (12, 4), (15, 4)]
    assert [len(output.token_ids) for output in outputs] == [1, 3, 3, 3]


def test_a_draft_that_is_all_right_brings_one_token_more():
    _, outputs, _ = run([request("A", 9, 9)], right=3)
    assert [len(output.token_ids) for output in outputs] == [1, 4, 4]


def test_drafts_beyond_the_end_of_the_output_are_dropped():
    _, outputs, _ = run([request("A", 9, 3)], right=3)
    assert [len(output.token_ids) for output in outputs] == [1, 2]
    assert outputs[-1].finish_reason == "length"


def test_a_limit_cuts_drafts_and_still_samples():
    sequence = Sequence(request("A", 9, 4), computed=8, draft_token_ids=(1, 2, 3))
    span = next_span(sequence, limit=3)
    assert (span.start, span.length, span.samples, span.draft_token_ids) == (8, 3, 1, (1, 2))
    assert span.token_ids == [sequence.token_ids[8], 1, 2]


def test_a_limit_within_the_prompt_takes_no_drafts():
    span = next_span(Sequence(request("A", 9, 4), computed=2, draft_token_ids=(1, 2, 3)), limit=4)
    assert (span.length, span.samples, span.draft_token_ids) == (4, 0, ())
