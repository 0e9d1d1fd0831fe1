"""Offline generation: what comes out of ``LLM`` for the prompts that went in."""

import numba
import pytest
import torch

from minillm.batch import Batch, Span
from minillm.cache.memory import PagedMemory
from minillm.llm import LLM
from minillm.model.naive import generate
from minillm.model.tiny import tiny
from minillm.model.tokenizer import ByteTokenizer
from minillm.outputs import joined
from minillm.request import Request, SamplingParams
from minillm.scheduler import Refused
from minillm.sequence import Sequence
from minillm.serving import LanguageModel, make_cache

TOKENIZER = ByteTokenizer()
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model():
    return LanguageModel(tiny(3), TOKENIZER)


@pytest.fixture
def llm(model):
    return LLM(model)


def oracle(model, prompt, params, branch=0):
    return tuple(
        generate(model.transformer, TOKENIZER.encode(prompt), params, branch, TOKENIZER.eos_token_ids).token_ids
    )


def test_each_prompt_gets_the_oracles_tokens_in_the_order_of_the_prompts(llm, model):
    prompts = ["a longer prompt than the others", "b", "and c"]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in outputs] == prompts
    assert [output.outputs[0].token_ids for output in outputs] == [oracle(model, prompt, GREEDY) for prompt in prompts]
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)


def test_the_text_is_that_of_the_tokens(llm):
    [output] = llm.generate("hello", GREEDY)
    assert output.outputs[0].text == TOKENIZER.decode(output.outputs[0].token_ids)


def test_a_prompt_may_be_token_ids(llm):
    [from_text], [from_ids] = llm.generate("hi", GREEDY), llm.generate([104, 105], GREEDY)
    assert from_ids.outputs == from_text.outputs
    assert (from_ids.prompt, from_ids.prompt_token_ids) == (None, (104, 105))


def test_texts_and_token_ids_mix(llm):
    outputs = llm.generate(["hi", [104, 105]], GREEDY)
    assert outputs[0].outputs == outputs[1].outputs


def test_no_prompts_give_no_outputs(llm):
    assert llm.generate([], GREEDY) == []


def test_each_prompt_may_have_its_own_parameters(llm):
    short, long = (SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (2, 5))
    outputs = llm.generate(["x", "x"], [short, long])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]


def test_n_samples_stand_in_the_order_of_their_index(llm, model):
    params = SamplingParams(n=3, seed=7, max_tokens=6, ignore_eos=True)
    [output] = llm.generate("abc", params)
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert [sample.token_ids for sample in output.outputs] == [oracle(model, "abc", params, b) for b in range(3)]


def test_logprobs_hold_the_sampled_token_and_the_likeliest(llm):
    [output] = llm.generate("abc", SamplingParams(seed=1, max_tokens=4, ignore_eos=True, logprobs=2))
    [sample] = output.outputs
    assert all(
        token in entry and len(entry) in {2, 3} for token, entry in zip(sample.token_ids, sample.logprobs, strict=True)
    )
    chosen = [entry[token] for token, entry in zip(sample.token_ids, sample.logprobs, strict=True)]
    assert sample.cumulative_logprob == pytest.approx(sum(chosen))


def test_without_logprobs_there_are_none(llm):
    [output] = llm.generate("abc", GREEDY)
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None


def test_a_stop_token_is_named(llm, model):
    third = oracle(model, "abc", GREEDY)[2]
    stop = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=(third,), ignore_eos=True)
    [output] = llm.generate("abc", stop)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", third)


def test_a_stream_brings_each_token_once_and_all_of_them(llm):
    [whole] = llm.generate("stream", GREEDY)
    parts = list(llm.stream("stream", GREEDY))
    assert [len(part.outputs[0].token_ids) for part in parts] == [1] * 12
    assert [part.finished for part in parts] == [False] * 11 + [True]
    assert joined(parts).outputs == whole.outputs


@pytest.mark.parametrize("shorter", [0, 1])
def test_a_request_is_finished_when_the_last_of_its_samples_is(llm, model, shorter):
    samples = [oracle(model, "abc", SamplingParams(n=2, max_tokens=6, ignore_eos=True), branch) for branch in range(2)]
    stop = samples[shorter][1]
    assert stop not in samples[1 - shorter]
    params = SamplingParams(n=2, max_tokens=6, ignore_eos=True, stop_token_ids=(stop,))
    parts = list(llm.stream("abc", params))
    assert [len(part.outputs) for part in parts] == [2, 2, 1, 1, 1, 1]
    assert [part.finished for part in parts] == [False] * 5 + [True]


def test_two_streams_read_in_turn_do_not_mix(llm):
    [first], [second] = llm.generate("one", GREEDY), llm.generate("two", GREEDY)
    pairs = list(zip(llm.stream("one", GREEDY), llm.stream("two", GREEDY), strict=True))
    assert joined([pair[0] for pair in pairs]).outputs == first.outputs
    assert joined([pair[1] for pair in pairs]).outputs == second.outputs


def test_a_stream_that_is_closed_early_leaves_nothing_running(llm):
    stream = llm.stream(["one", "two"], GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_work
    llm.engine.scheduler.check_integrity()


def test_a_conversation_is_answered_as_its_prompt_would_be(llm):
    messages = [{"role": "user", "content": "hi"}]
    [chat], [plain] = llm.chat(messages, GREEDY), llm.generate("user: hi\nassistant:", GREEDY)
    assert chat.outputs == plain.outputs


def test_several_conversations_are_answered_together(llm):
    conversations = [[{"role": "user", "content": text}] for text in ("hi", "ho")]
    outputs = llm.chat(conversations, GREEDY)
    assert [output.outputs for output in outputs] == [llm.chat(each, GREEDY)[0].outputs for each in conversations]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["fine", ""], "empty"),
        (["fine", [104, 257]], "token id 257 is not in the vocabulary"),
        (["fine", "x" * 501], "exceed the context of"),
        (["fine", 7], "7 is no prompt"),
        (["fine", [1.5]], r"\[1.5\] is no prompt"),
    ],
)
def test_one_bad_prompt_is_named_and_nothing_runs(llm, prompts, message):
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, GREEDY)
    assert not llm.engine.has_work
    assert not llm.engine.steps


def test_a_prompt_that_the_policy_could_never_run_is_refused_and_nothing_runs(model):
    llm = LLM(model, max_num_seqs=2)
    three = SamplingParams(n=3, max_tokens=2)
    with pytest.raises(Refused, match="needs 3 seats"):
        llm.generate(["fine", "too many"], [GREEDY, three])
    assert not llm.engine.steps


def test_parameters_must_fit_the_prompts(llm):
    with pytest.raises(ValueError, match="2 sampling parameters cannot serve 3 prompts"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])


def test_an_output_that_fails_says_why_and_the_others_go_on(model):
    broken = tiny(3)
    broken.embedding.data[ord("!")] = torch.nan
    good, bad = LLM(LanguageModel(broken, TOKENIZER)).generate(["good", "bad!"], GREEDY)
    assert good.outputs[0].token_ids == oracle(model, "good", GREEDY)
    assert (bad.finished, bad.outputs[0].finish_reason) == (True, "error")
    assert "logits peak at nan" in bad.outputs[0].error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", ["vllm", "static"])
def test_a_16_bit_model_generates_over_a_cache_of_32_bits(dtype, policy):
    llm = LLM(LanguageModel(tiny(3, dtype=dtype), TOKENIZER), policy=policy)
    [output] = llm.generate("narrow", GREEDY)
    assert len(output.outputs[0].token_ids) == 12


def test_attention_of_a_16_bit_model_is_that_of_32_bits_rounded():
    memory, config = PagedMemory(num_blocks=2, block_size=4), tiny().config
    q, k, v = (torch.randn(5, heads, config.head_dim).bfloat16() for heads in (4, 2, 2))
    batch = Batch((Span(Sequence(Request("a", (1, 2, 3, 4, 5)), memory=[1, 0]), 0, 5),))
    narrow, wide = (make_cache(config, memory, dtype).lower(batch).attend for dtype in (torch.bfloat16, torch.float32))
    assert torch.equal(narrow(0, q, k, v), wide(0, q.float(), k.float(), v.float()).bfloat16())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "wllm"}, "no policy 'wllm'"),
        ({"dtype": "float8"}, "dtype 'float8' is unknown"),
        ({"dtype": "float32"}, "loaded in torch.float64, not float32"),
        ({"device": "tpu"}, "device 'tpu' has no kernels"),
        ({"max_model_len": 513}, "max_model_len is 513"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"kv_tokens": 100}, "kv_tokens is 100"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    ],
)
def test_an_impossible_set_up_is_refused_with_its_rule(model, options, message):
    with pytest.raises(ValueError, match=message):
        LLM(model, **options)


def test_a_gpu_that_is_not_there_is_not_replaced_by_the_cpu(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="needs a CUDA GPU"):
        LLM(model, device="cuda")


def test_a_model_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.gguf"):
        LLM(tmp_path / "missing.gguf")


def test_numba_gets_no_more_threads_than_torch_which_keeps_its_own(model):
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    LLM(model)
    assert (numba.get_num_threads(), torch.get_num_threads()) == (1, 1)


@pytest.mark.smollm2
def test_the_default_model_answers_a_question():
    [output] = LLM(max_model_len=128).generate(
        "The capital of France is", SamplingParams(temperature=0.0, max_tokens=4)
    )
    assert "Paris" in output.outputs[0].text
