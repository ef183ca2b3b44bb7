"""GGUF files made from a known model come back as that model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from blockyard.workers.catalog import DEFAULT_MODEL, SilentProgress, resolve_model
from blockyard.workers.gguf_convert import UnsupportedGguf, convert_gguf
from blockyard.workers.gguf_tokenizer import UnsupportedTokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "1 2"]
TOKENS = [*CONTROL, *ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]
TOKENS += [f"<unused{index}>" for index in range(300 - len(TOKENS))]
LAYER_NAMES = {
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

WriteGguf = Callable[..., Path]


def _gguf_tensor(name: str, value: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]]:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name], value
    _, _, layer, *middle, kind = name.split(".")
    part = LAYER_NAMES[".".join(middle)]
    heads = {"attn_q": 4, "attn_k": 2}.get(part)
    if heads is not None:  # rows of each rotation side by side
        halves = value.reshape(heads, 2, value.shape[0] // heads // 2, -1)
        value = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
    return f"blk.{layer}.{part}.{kind}", value


@pytest.fixture
def write_gguf(tiny_llama: Any, tmp_path: Path) -> WriteGguf:
    def write(
        quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        architecture: str = "llama",
        split: str = "smollm",
        extra_tensor: str | None = None,
        tied: bool = False,
        **metadata: Any,
    ) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_context_length(512)
        writer.add_embedding_length(64)
        writer.add_block_count(2)
        writer.add_feed_forward_length(96)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_key_length(16)
        writer.add_rope_dimension_count(metadata.pop("rotary", 16))
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_tokenizer_model(metadata.pop("tokenizer_model", "gpt2"))
        writer.add_tokenizer_pre(split)
        writer.add_token_list(TOKENS)
        writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template("{{ messages[0]['content'] }}\n")
        for key, value in metadata.items():
            getattr(writer, f"add_{key}")(value)
        for name, tensor in tiny_llama.state_dict().items():
            if tied and name == "lm_head.weight":
                continue
            gguf_name, value = _gguf_tensor(name, tensor.numpy())
            plain = value.ndim == 1 or quantisation is gguf.GGMLQuantizationType.F32
            packed = value if plain else gguf.quantize(value, quantisation)
            writer.add_tensor(gguf_name, packed, raw_dtype=None if plain else quantisation)
        if extra_tensor is not None:
            writer.add_tensor(extra_tensor, np.ones(8, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _convert(source: Path, progress: Any) -> Path:
    folder = source.parent / "out"
    folder.mkdir()
    convert_gguf(source, folder, progress)
    return folder


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_weights_come_back_exactly(write_gguf: WriteGguf, tiny_llama: Any, progress: Any) -> None:
    folder = _convert(write_gguf(), progress)
    model = _load(folder)
    expected = tiny_llama.state_dict()
    assert model.state_dict().keys() == expected.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    ids = torch.tensor([[5, 9, 200, 7]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, tiny_llama(ids).logits)
    total = sum(value.nbytes for value in expected.values())
    assert progress.stages == [("converting weights", total)]
    assert progress.done == total


def test_quantised_weights_come_back_close(
    write_gguf: WriteGguf, tiny_llama: Any, progress: Any
) -> None:
    model = _load(_convert(write_gguf(gguf.GGMLQuantizationType.Q8_0), progress))
    for name, value in tiny_llama.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=0.01, rtol=0)


def test_config_says_what_the_file_says(write_gguf: WriteGguf, progress: Any) -> None:
    folder = _convert(write_gguf(tied=True), progress)
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert config["rms_norm_eps"] == 1e-6
    assert config["max_position_embeddings"] == 512
    assert (config["num_key_value_heads"], config["head_dim"]) == (2, 16)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]


def test_tokenizer(write_gguf: WriteGguf, progress: Any) -> None:
    folder = _convert(write_gguf(), progress)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 300
    encoded = tokenizer.encode("<|im_start|>hello 123<|im_end|>")
    assert encoded.tokens == ["<|im_start|>", "hello", "Ġ", "1", "2", "3", "<|im_end|>"]
    assert encoded.ids[0] == 1
    text = "hello, wörld 12 🎉\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages[0]['content'] }}\n"
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    assert theirs("<|im_start|>hello 123<|im_end|>")["input_ids"] == encoded.ids
    assert theirs.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


def test_digits_stay_together_where_the_kind_says_so(write_gguf: WriteGguf, progress: Any) -> None:
    folder = _convert(write_gguf(split="llama-bpe"), progress)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Llama's kind also begins with BOS unless the file says otherwise.
    assert tokenizer.encode("hello123").tokens == ["<|im_start|>", "hello", "12", "3"]


def test_bos_as_the_file_says(write_gguf: WriteGguf, progress: Any) -> None:
    folder = _convert(write_gguf(add_bos_token=True), progress)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello").tokens == ["<|im_start|>", "hello"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"architecture": "falcon"}, UnsupportedGguf, "architecture 'falcon'"),
        ({"expert_count": 8}, UnsupportedGguf, "mixture of experts"),
        ({"rotary": 8}, UnsupportedGguf, "rotates 8 of 16"),
        ({"extra_tensor": "rope_freqs.weight"}, UnsupportedGguf, "scales its rotary"),
        ({"extra_tensor": "blk.0.attn_q_norm.weight"}, UnsupportedGguf, "attn_q_norm"),
        ({"split": "klingon"}, UnsupportedTokenizer, "'klingon'"),
        ({"tokenizer_model": "llama"}, UnsupportedTokenizer, "kind 'llama'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    write_gguf: WriteGguf,
    progress: Any,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        _convert(write_gguf(**change), progress)


@pytest.mark.model
@pytest.mark.slow
def test_default_model_speaks() -> None:
    folder = resolve_model(DEFAULT_MODEL, None, SilentProgress(), verify=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = _load(folder).generate(**prompt, max_new_tokens=12, do_sample=False)
    text = tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text == "The capital of France is Paris."
