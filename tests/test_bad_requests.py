"""What can never run is refused by one clear sentence, at once or when it arrives, and nobody else notices."""

from dataclasses import replace

import pytest
from cell_model import expected_outputs, on_cells
from every_policy import SMALL, small
from harness import LIMITS, POLICIES, VOCAB, request, tokens_of, trace

from minillm.scheduler import Refused

CROWD = [request(f"r{i}", 1 + 5 * i % 17, 1 + 7 * i % 12) for i in range(9)]

NEVER_ADDED = {
    "empty prompt": (request("bad", 0, 4), "the prompt of request 'bad' is empty; give at least one token"),
    "arrival at no time": (replace(request("bad", 3, 4), arrival=float("nan")), "request 'bad' arrives at nan; give"),
    "arrival never": (
        replace(request("bad", 3, 4), arrival=float("inf")),
        "request 'bad' arrives at inf; give a finite",
    ),
    "negative token": (replace(request("bad", 3, 4), prompt_token_ids=(5, -1)), "token id -1 is not in the vocabulary"),
    "token beyond the last": (
        replace(request("bad", 3, 4), prompt_token_ids=(5, VOCAB)),
        f"token id {VOCAB} is not in the vocabulary; ids run from 0 to {VOCAB - 1}",
    ),
    "longer than the context": (
        request("bad", LIMITS.max_context - 3, 4),
        "509 prompt tokens and max_tokens 4 exceed the context of 512 tokens; shorten",
    ),
    "stop string without a tokenizer": (
        request("bad", 3, 4, params={"stop": "###"}),
        "the stop string '###' cannot be found in token ids alone; give a tokenizer",
    ),
    "id in use": (request("r8", 3, 4), "request id 'r8' is in use; give each running request an id of its own"),
}

# A request of 7 prompt and 6 output tokens, whose cache holds 12 at its peak; and two samples of it.
EXACT_FITS = [
    ("single", {"max_samples": 1}, "columns", 13, 1),
    ("single", {"columns": 13}, "max_samples", 2, 2),
    ("static", {"max_batch_size": 1}, "columns", 13, 1),
    ("static", {"columns": 13}, "max_batch_size", 2, 2),
    ("naive static", {"max_batch_size": 1, "passes_per_batch": 3}, "columns", 13, 1),
    ("naive static", {"max_batch_size": 1, "passes_per_batch": 9}, "columns", 16, 1),
    ("naive static", {"passes_per_batch": 9, "columns": 16}, "max_batch_size", 2, 2),
    ("dynamic", {"max_batch_size": 1}, "columns", 13, 1),
    ("dynamic", {"columns": 13}, "max_batch_size", 2, 2),
    ("ragged", {"max_batch_size": 1}, "columns", 13, 1),
    ("ragged", {"columns": 13}, "max_batch_size", 2, 2),
    ("orca", {"max_bs": 1}, "n_slots", 13, 1),
    ("orca", {"max_bs": 1}, "n_slots", 13, 2),
    ("vllm", {"block_size": 4}, "num_blocks", 3, 1),
    ("vllm", {"block_size": 4, "watermark": 2}, "num_blocks", 5, 1),
    ("vllm", {"block_size": 4, "swap_blocks": 9}, "num_blocks", 7, 2),
    ("vllm", {"block_size": 4, "num_blocks": 9}, "max_num_batched_tokens", 12, 1),
    ("vllm", {"block_size": 4, "num_blocks": 9}, "max_num_seqs", 2, 2),
    ("splitfuse", {"block_size": 4, "token_budget": 3}, "num_blocks", 3, 1),
    ("splitfuse", {"block_size": 4, "token_budget": 3}, "num_blocks", 3, 2),
]
NAMES = [f"{policy}: {size} {limit}, n={n}" for policy, _, size, limit, n in EXACT_FITS]


@pytest.mark.parametrize("bad, sentence", NEVER_ADDED.values(), ids=NEVER_ADDED)
def test_a_bad_request_is_answered_by_one_sentence(bad, sentence):
    engine = on_cells(small("vllm"), CROWD)
    with pytest.raises(ValueError) as caught:
        engine.add(bad)
    assert str(caught.value).startswith(sentence)
    assert len(engine.requests) == len(CROWD)


def test_a_prompt_and_output_that_fill_the_context_exactly_are_taken():
    whole = request("A", LIMITS.max_context - 4, 4)
    engine = on_cells(POLICIES["orca"](1, 512), [whole])
    assert tokens_of(engine.run()) == expected_outputs([whole])


def test_an_id_may_be_used_again_when_its_request_has_ended():
    engine = on_cells(small("vllm"), [request("A", 3, 2)])
    engine.run()
    again = request("A", 5, 4)
    engine.add(again)
    assert tokens_of(engine.run()) == expected_outputs([again])


@pytest.mark.parametrize("policy, options, size, limit, n", EXACT_FITS, ids=NAMES)
def test_what_fits_exactly_is_taken_and_runs_to_its_end(policy, options, size, limit, n):
    asked = request("A", 7, 6, params={"n": n})
    scheduler = POLICIES[policy](**options, **{size: limit})
    assert tokens_of(on_cells(scheduler, [asked]).run()) == expected_outputs([asked])
    assert scheduler.load().reserved == 0


@pytest.mark.parametrize("policy, options, size, limit, n", EXACT_FITS, ids=NAMES)
def test_what_is_one_too_large_is_refused_and_the_next_one_runs(policy, options, size, limit, n):
    asked, tiny = request("A", 7, 6, params={"n": n}), request("B", 1, 1)
    engine = on_cells(POLICIES[policy](**options, **{size: limit - 1}), [])
    with pytest.raises(Refused, match=r"^the request needs \d+ .+ and there are \d+; (shorten|lower)") as caught:
        engine.add(asked)
    assert caught.value.code == "never_fits"
    engine.add(tiny)
    assert tokens_of(engine.run()) == expected_outputs([tiny])
    assert [(record.id, record.refused) for record in engine.requests] == [("A", str(caught.value)), ("B", None)]


@pytest.mark.parametrize(
    "policy, options, first_pass",
    [
        ("orca", {"max_bs": 4, "n_slots": 26}, "A7 B7"),
        ("orca", {"max_bs": 4, "n_slots": 25}, "A7"),
        ("vllm", {"num_blocks": 5, "block_size": 4, "watermark": 1}, "A7 B7"),
        ("vllm", {"num_blocks": 4, "block_size": 4, "watermark": 1}, "A7"),
        ("splitfuse", {"num_blocks": 4, "block_size": 4}, "A7 B7"),
        ("splitfuse", {"num_blocks": 3, "block_size": 4}, "A7"),
        ("static", {"max_batch_size": 2, "columns": 13}, "A7 B7"),
        ("static", {"max_batch_size": 1, "columns": 13}, "A7"),
    ],
)
def test_a_second_request_enters_beside_the_first_if_it_fits_exactly(policy, options, first_pass):
    engine = on_cells(POLICIES[policy](**options), [request("A", 7, 6), request("B", 7, 6)])
    engine.step()
    assert trace(engine.steps) == [first_pass]


@pytest.mark.parametrize("policy", SMALL)
def test_a_request_that_is_refused_when_it_arrives_ends_with_an_output_that_says_why(policy):
    engine = on_cells(small(policy), [request("A", 300, 4, arrival=2.5), request("B", 3, 2, arrival=2.5)])
    outputs = engine.run()
    refused, *served = outputs
    assert (refused.request_id, refused.finish_reason) == ("A", "refused")
    assert refused.error == engine.requests[0].refused
    assert "; shorten the prompt" in refused.error
    assert tokens_of(served) == expected_outputs([request("B", 3, 2)])


@pytest.mark.parametrize("policy", SMALL)
def test_bad_and_refused_requests_disturb_nobody(policy):
    alone = on_cells(small(policy), CROWD)
    expected = alone.run()
    engine = on_cells(small(policy), CROWD)
    outputs = []
    while engine.has_work:
        for bad, _ in NEVER_ADDED.values():
            if bad.id == "bad" or engine.is_open(bad.id):
                with pytest.raises(ValueError):
                    engine.add(bad)
        with pytest.raises(Refused):
            engine.add(request("huge", 300, 4))
        engine.add(request(f"later {len(outputs)} {engine.clock.now()}", 300, 4, arrival=engine.clock.now() + 0.25))
        outputs += engine.step()
        if not any(engine.is_open(each.id) for each in CROWD):
            break
    assert [output for output in outputs if output.finish_reason != "refused"] == expected
    assert engine.steps == alone.steps


@pytest.mark.parametrize(
    "policy, size",
    [
        *(("single", "columns"), ("static", "max_batch_size"), ("static", "columns"), ("dynamic", "max_batch_size")),
        *(("naive static", "passes_per_batch"), ("ragged", "columns"), ("orca", "max_bs"), ("orca", "n_slots")),
        *(("vllm", "num_blocks"), ("vllm", "max_num_seqs"), ("vllm", "max_num_batched_tokens")),
        *(("splitfuse", "num_blocks"), ("splitfuse", "token_budget"), ("splitfuse", "max_num_seqs")),
    ],
)
def test_a_policy_that_could_never_run_anything_is_not_made(policy, size):
    with pytest.raises(ValueError, match=f"^{size} is 0; it must be at least 1$"):
        POLICIES[policy](**SMALL[policy] | {size: 0})


def test_a_negative_watermark_is_not_taken():
    with pytest.raises(ValueError, match="watermark is -1"):
        POLICIES["vllm"](**SMALL["vllm"] | {"watermark": -1})
