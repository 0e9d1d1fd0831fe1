"""A workload is what its parameters say, and the same whenever it is made again."""

import numpy as np
import pytest

from minillm.model.tokenizer import ByteTokenizer
from minillm.simulator.workload import (
    Length,
    arrival_times,
    build_workload,
    fixed_lengths,
    lognormal_lengths,
    random_prompts,
    read_lengths,
    text_prompts,
)


def variation(moments):
    gaps = np.diff(moments)
    return gaps.std() / gaps.mean()


@pytest.mark.parametrize("seed", range(5))
def test_the_last_request_arrives_exactly_at_count_over_rate(seed):
    moments = arrival_times(40, rate=8.0, seed=seed)
    assert moments[-1] == pytest.approx(5.0)
    assert (np.diff(moments) >= 0).all()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape_of_gamma_gaps(burstiness):
    moments = arrival_times(20_000, rate=3.0, seed=1, burstiness=burstiness)
    assert variation(moments) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_an_infinite_rate_sends_everything_at_once():
    assert arrival_times(3, rate=float("inf"), seed=0).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("rate", "burstiness", "named"), [(0, 1, "rate is 0"), (float("nan"), 1, "nan"), (1, 0, "burstiness is 0")]
)
def test_impossible_arrivals_are_refused_by_name(rate, burstiness, named):
    with pytest.raises(ValueError, match=named):
        arrival_times(3, rate, seed=0, burstiness=burstiness)


def test_lognormal_lengths_keep_their_means_and_are_cut():
    lengths = lognormal_lengths(20_000, prompt_mean=60, output_mean=30, seed=0)
    prompts, outputs = np.array([(length.prompt_tokens, length.output_tokens) for length in lengths]).T
    assert prompts.mean() == pytest.approx(60, rel=0.02)
    assert outputs.mean() == pytest.approx(30, rel=0.02)
    assert (prompts.max(), outputs.max()) == (240, 120)
    assert outputs.min() >= 1
    assert abs(np.corrcoef(prompts, outputs)[0, 1]) < 0.03


def test_a_mean_below_one_token_is_refused():
    with pytest.raises(ValueError, match=r"mean length is 0.5 tokens"):
        lognormal_lengths(4, 0.5, 10, seed=0)


def test_lengths_are_read_from_csv_and_json_lines(tmp_path):
    csv_file, jsonl_file = tmp_path / "lengths.csv", tmp_path / "lengths.jsonl"
    csv_file.write_text("id,prompt_tokens,output_tokens\na,5,7\nb,2,1\n")
    jsonl_file.write_text('{"prompt_tokens": 5, "output_tokens": 7}\n{"prompt_tokens": 2, "output_tokens": 1}\n')
    assert read_lengths(csv_file) == read_lengths(jsonl_file) == [Length(5, 7), Length(2, 1)]


@pytest.mark.parametrize(
    ("rows", "named"), [("5,0", "request 1: a request of 5 prompt and 0 out"), ("5,x", "'x'"), ("5", "output_tokens")]
)
def test_a_bad_row_is_named(tmp_path, rows, named):
    file = tmp_path / "lengths.csv"
    file.write_text(f"prompt_tokens,output_tokens\n{rows}\n")
    with pytest.raises(ValueError, match=named):
        read_lengths(file)


def test_prompts_are_real_text_of_the_asked_length_and_differ():
    lengths = [Length(tokens, 1) for tokens in (1, 40, 20_000)] + fixed_lengths(100, 300, 1)
    prompts = text_prompts(lengths, ByteTokenizer())
    assert [len(prompt) for prompt in prompts] == [length.prompt_tokens for length in lengths]
    assert ByteTokenizer().decode(prompts[2]).startswith("List five things")
    assert len({prompt[:30] for prompt in prompts[3:]}) == 64


def test_random_prompts_stay_in_the_vocabulary_and_repeat_with_the_seed():
    lengths = fixed_lengths(3, 50, 1)
    prompts = random_prompts(lengths, vocab_size=11, seed=4)
    assert {token for prompt in prompts for token in prompt} == set(range(11))
    assert prompts == random_prompts(lengths, vocab_size=11, seed=4)


def test_a_workload_forces_every_length():
    lengths = [Length(2, 3), Length(1, 1)]
    first, second = build_workload(lengths, [(7, 8), (9,)], [0.0, 0.5])
    assert (first.id, second.id, second.arrival) == ("r0", "r1", 0.5)
    assert first.params.max_tokens == first.expected_output == 3
    assert first.params.ignore_eos and first.params.greedy
