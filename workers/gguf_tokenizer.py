"""Builds a Hugging Face tokenizer from the vocabulary inside a GGUF file.

Covers byte-level BPE with the ways of splitting text named in `_SPLITS`; any other kind is refused
by name, because a wrong split gives wrong token ids without any error. Knows nothing of weights.
"""

import json
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

__all__ = ["GgufVocabulary", "UnsupportedTokenizer", "end_token_ids", "write_tokenizer"]

_END_TOKENS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"}
)
"""Control tokens that end a turn or a text in every model family that has them."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_AND_SPACE = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class UnsupportedTokenizer(Exception):
    """The GGUF file's tokenizer is of a kind that cannot be rebuilt faithfully."""


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


@dataclass(frozen=True, slots=True)
class _Split:
    """How text is cut before merging; None for `pattern` means the GPT-2 pattern."""

    pattern: str | None = None
    digits_apart: bool = False
    compose_unicode: bool = False
    whole_words_first: bool = False
    begins_with_bos: bool = False


_SPLITS = {
    "default": _Split(),
    "gpt-2": _Split(),
    "smollm": _Split(digits_apart=True),
    "llama-bpe": _Split(
        pattern=_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _WORDS_AND_SPACE,
        whole_words_first=True,
        begins_with_bos=True,
    ),
    "qwen2": _Split(
        pattern=_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _WORDS_AND_SPACE,
        compose_unicode=True,
    ),
}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The `tokenizer.*` metadata of a GGUF file.

    Attributes:
        model: kind of tokenizer; only `gpt2` (byte-level BPE) is known here.
        split: name of the way text is cut before merging.
        tokens: text of each token in byte-level spelling, by id.
        types: kind of each token, by id.
        merges: BPE merges in order, each two pieces separated by a space.
        bos, eos, unknown, padding: token ids.
        begins_with_bos: whether BOS is put before a prompt; None means the kind's custom.
        chat_template: jinja2 text.
    """

    model: str
    split: str
    tokens: list[str]
    types: list[int]
    merges: list[str]
    bos: int | None = None
    eos: int | None = None
    end_of_turn: int | None = None
    unknown: int | None = None
    padding: int | None = None
    begins_with_bos: bool | None = None
    chat_template: str | None = None


def end_token_ids(vocabulary: GgufVocabulary) -> tuple[int, ...]:
    """Every token that ends an answer: the file's EOS and EOT, then control tokens so named."""
    ids = [token for token in (vocabulary.eos, vocabulary.end_of_turn) if token is not None]
    for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind == _TokenType.CONTROL and text in _END_TOKENS and token not in ids:
            ids.append(token)
    return tuple(dict.fromkeys(ids))


def write_tokenizer(vocabulary: GgufVocabulary, context_tokens: int, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` into `folder`.

    Raises:
        UnsupportedTokenizer: the kind of tokenizer or of split is not known here.
    """
    tokenizer = _build(vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    for name, token in (
        ("bos_token", vocabulary.bos),
        ("eos_token", vocabulary.eos),
        ("unk_token", vocabulary.unknown),
        ("pad_token", vocabulary.padding),
    ):
        if token is not None:
            settings[name] = vocabulary.tokens[token]
    if vocabulary.chat_template is not None:
        settings["chat_template"] = vocabulary.chat_template
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _build(vocabulary: GgufVocabulary) -> Tokenizer:
    if vocabulary.model != "gpt2":
        raise UnsupportedTokenizer(
            f"the GGUF tokenizer is of kind {vocabulary.model!r}; only 'gpt2' (byte-level BPE) can "
            "be converted; use the model's original Hugging Face directory instead"
        )
    split = _SPLITS.get(vocabulary.split)
    if split is None:
        raise UnsupportedTokenizer(
            f"the GGUF tokenizer splits text in the way {vocabulary.split!r}; known are "
            f"{', '.join(_SPLITS)}; use the model's original Hugging Face directory instead"
        )
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: token for token, text in enumerate(vocabulary.tokens)},
            merges=[_pair(merge) for merge in vocabulary.merges],
            fuse_unk=False,
            byte_fallback=False,
            ignore_merges=split.whole_words_first,
        )
    )
    if split.compose_unicode:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
        elif kind == _TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, special=False, normalized=False)])
    begins_with_bos = vocabulary.begins_with_bos
    if begins_with_bos is None:
        begins_with_bos = split.begins_with_bos
    if begins_with_bos and vocabulary.bos is not None:
        bos = vocabulary.tokens[vocabulary.bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, vocabulary.bos)],
        )
    return tokenizer


def _pre_tokenizer(split: _Split) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.digits_apart:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    return pre_tokenizers.Sequence(steps)


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
