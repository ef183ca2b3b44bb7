"""Writes the model directory of the witness: a byte-level tokenizer and a configuration.

The witness (`workers/fake.py`) has no weights, but the rest of the system asks every model for its
vocabulary, context length, EOS token and chat template, so it gets the same files. Units: tokens.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["WITNESS_CONTEXT_TOKENS", "write_witness_files"]

WITNESS_CONTEXT_TOKENS = 4096

_END, _TURN_START, _TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_witness_files(folder: Path) -> None:
    """Fill `folder`: one token for each byte (ids 0 to 255), then the three control tokens."""
    # The byte-level alphabet writes each byte as one printable character; sorted, it is stable.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={text: token for token, text in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    for text in (_END, _TURN_START, _TURN_END):
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))

    eos = tokenizer.token_to_id(_TURN_END)
    config = {
        "architectures": ["BlockyardWitness"],
        "model_type": "blockyard-witness",
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": WITNESS_CONTEXT_TOKENS,
        "bos_token_id": tokenizer.token_to_id(_TURN_START),
        "eos_token_id": eos,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": eos})
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": WITNESS_CONTEXT_TOKENS,
            "clean_up_tokenization_spaces": False,
            "bos_token": _TURN_START,
            "eos_token": _TURN_END,
            "chat_template": _CHAT_TEMPLATE,
        },
    )


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
