"""An error or an abort ends one request: its memory comes back, and everyone else's tokens are what they were."""

import pytest
import torch
from cell_model import expected_outputs, on_cells
from every_policy import SMALL, roomy, small
from harness import LIMITS, POLICIES, oracle, real_cache, request, simulated, tokens_of, trace

from minillm.cache.memory import PagedMemory
from minillm.executor import TorchExecutor
from minillm.model.tiny import tiny

CROWD = [request(name, prompt, 8) for name, prompt in (("A", 9), ("B", 13), ("C", 4), ("D", 11))]
LATER = request("B", 13, 8, arrival=0.25)
WHOLE = expected_outputs(CROWD)
MODEL = tiny(0)


def endings(outputs):
    return {output.sequence: output.finish_reason for output in outputs if output.finish_reason}


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kept", [0, 1, 5])
@pytest.mark.parametrize("policy", SMALL)
def test_an_error_ends_its_request_alone_and_keeps_the_tokens_before_it(policy, kept, depth):
    scheduler = small(policy)
    outputs = on_cells(scheduler, CROWD, fails_at={"B": 13 + kept}, depth=depth).run()
    assert tokens_of(outputs) == WHOLE | {"B": WHOLE["B"][:kept]}
    assert endings(outputs) == {"A": "length", "B": "error", "C": "length", "D": "length"}
    assert [output.error for output in outputs if output.error] == ["the cells of this request are broken"]
    assert scheduler.load().reserved == 0
    scheduler.check_integrity()


def test_an_error_within_a_prompt_that_is_cut_ends_it_there():
    scheduler = POLICIES["splitfuse"](num_blocks=16, block_size=4, token_budget=4)
    engine = on_cells(scheduler, CROWD[:2], fails_at={"B": 6})
    outputs = engine.run()
    assert trace(engine.steps)[:5] == ["A4", "A4", "A1 B3", "A1 B3", "A1"]
    assert tokens_of(outputs) == {"A": WHOLE["A"], "B": []}
    assert endings(outputs)["B"] == "error"


def test_a_row_that_failed_is_held_while_its_padded_batch_goes_on():
    engine = on_cells(roomy("static"), CROWD[:3], fails_at={"B": 14})
    outputs = engine.run()
    assert trace(engine.steps)[:4] == ["A9 B13 C4", "A1 B1 C1", "A1 C1 (B)", "A1 C1 (B)"]
    assert tokens_of(outputs) == {name: WHOLE[name] for name in "AC"} | {"B": WHOLE["B"][:1]}


@pytest.mark.parametrize("policy", SMALL)
def test_an_error_of_one_sample_leaves_the_others_to_go_on(policy):
    asked = [request("A", 9, 8, params={"n": 3}), request("B", 5, 8)]
    scheduler = small(policy)
    outputs = on_cells(scheduler, asked, fails_at={"A.1": 9 + 3}).run()
    whole = expected_outputs(asked)
    assert tokens_of(outputs) == whole | {"A.1": whole["A.1"][:3]}
    assert endings(outputs) == {"A.0": "length", "A.1": "error", "A.2": "length", "B": "length"}
    assert scheduler.load().reserved == 0


def test_an_error_before_the_fork_ends_all_samples_in_one_output():
    engine = on_cells(roomy("vllm"), [request("A", 9, 8, params={"n": 3}), CROWD[1]], fails_at={"A": 9})
    outputs = engine.run()
    assert endings(outputs) == {"A.0": "error", "B": "length"}
    assert not engine.is_open("A")


@pytest.mark.parametrize("policy", SMALL)
def test_nan_logits_fail_the_sequence_whose_cache_is_spoilt_and_no_other(policy):
    """Its blocks go to others while they still hold NaN: those write each place before they read it."""
    scheduler = small(policy)
    cache = real_cache(MODEL, scheduler.memory)
    execute = TorchExecutor(MODEL, cache, LIMITS.eos_token_ids)

    def spoilt(batch):
        for span in batch.spans:
            if span.sequence.request.id == "B" and span.start == 15:
                spoil(cache, scheduler.memory, span.sequence.memory)
        return execute(batch)

    outputs = simulated(scheduler, CROWD, execute=spoilt).run()
    whole = oracle(MODEL, CROWD)
    assert tokens_of(outputs) == whole | {"B": whole["B"][:3]}
    assert endings(outputs) == {"A": "length", "B": "error", "C": "length", "D": "length"}
    (error,) = (output.error for output in outputs if output.error)
    assert "the model's logits peak at nan" in error


def spoil(cache, memory, place):
    """Overwrite the keys of a sequence's first place."""
    block = place[0] if isinstance(memory, PagedMemory) else place.index
    cache.k[:, block] = torch.nan


def with_a_in_flight(scheduler):
    """A's first pass is on its way when B arrives."""
    engine = on_cells(scheduler, [CROWD[0], LATER], depth=3)
    while engine.clock.now() < LATER.arrival:
        engine.step()
    return engine


@pytest.mark.parametrize("policy", SMALL)
def test_an_abort_in_flight_keeps_the_memory_until_the_pass_is_back_and_drops_its_tokens(policy):
    scheduler = small(policy)
    engine = with_a_in_flight(scheduler)
    reserved = scheduler.load().reserved
    assert reserved > 0
    (told,) = engine.abort("A")
    assert (told.request_id, told.finish_reason, told.token_ids) == ("A", "abort", ())
    assert scheduler.load().reserved == reserved
    outputs = engine.run()
    assert tokens_of(outputs) == expected_outputs([request("B", 13, 8)])
    assert scheduler.load().reserved == 0
    scheduler.check_integrity()


@pytest.mark.parametrize("policy", SMALL)
def test_the_id_of_a_request_aborted_in_flight_may_be_used_at_once(policy):
    engine = with_a_in_flight(small(policy))
    engine.abort("A")
    again = request("A", 6, 5, params={"seed": 3}, arrival=engine.clock.now())
    engine.add(again)
    outputs = engine.run()
    assert tokens_of(outputs) == expected_outputs([again, request("B", 13, 8)])
    assert endings(outputs) == {"A": "length", "B": "length"}


@pytest.mark.parametrize("policy", SMALL)
def test_an_abort_of_what_has_ended_or_never_was_does_nothing(policy):
    engine = on_cells(small(policy), CROWD)
    engine.abort("A")
    assert engine.abort("A") == [] == engine.abort("nobody")
    outputs = engine.run()
    assert engine.abort("B") == []
    assert tokens_of(outputs) == {name: WHOLE[name] for name in "BCD"}


@pytest.mark.parametrize("moment", range(1, 14))
@pytest.mark.parametrize("policy", SMALL)
def test_whenever_a_request_is_aborted_the_others_get_their_tokens(policy, moment):
    scheduler = small(policy)
    engine = on_cells(scheduler, CROWD)
    outputs = [output for _ in range(moment) for output in engine.step()]
    before = tokens_of(outputs).get("B", [])
    engine.abort("B")
    outputs += engine.run()
    assert tokens_of(outputs) | {"B": before} == WHOLE | {"B": WHOLE["B"][: len(before)]}
    assert scheduler.load().reserved == 0
