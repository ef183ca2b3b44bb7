"""Text to tokens with a model's own files, and its chat template; loads no torch.

Prompts get the special tokens of the tokenizer once. Chats get those that the template writes and
no others, and control tokens spelled inside a message stay plain text. Knows no requests and no
limits. Units: token ids.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from blockyard.cluster.request.chat_template import (
    ChatTemplate,
    ChatTemplateError,
    read_chat_template,
)
from blockyard.cluster.request.control_text import ControlText, PlainEncoder
from blockyard.cluster.request.speech_format import SpeechFormat, speech_format
from blockyard.cluster.request.token_decoder import (
    ByteTokenDecoder,
    MarkDecoder,
    TokenDecoder,
    WindowTokenDecoder,
)

__all__ = ["ModelTokenizer", "TokenizerFilesError", "load_tokenizer"]

_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")

_QUICK_CHARACTERS = 4096
"""`Tokenizer.encode` is quick to start but holds the interpreter; beyond this, batch calls, which
let other threads run, are worth their start-up."""


class TokenizerFilesError(Exception):
    """A model directory has no usable tokenizer; the message names the file."""


class ModelTokenizer:
    """One model's tokenizer. Its methods may be called from several threads at once."""

    def __init__(
        self,
        inner: Tokenizer,
        template: ChatTemplate | None = None,
        tool_format: str = "auto",
        reasoning_format: str = "auto",
    ) -> None:
        """For the formats see `speech_format`. Raises `ValueError` when one is not known."""
        self._inner = inner
        self._template = template
        self._speech = (
            speech_format(template.source, template.uses, tool_format, reasoning_format)
            if template is not None
            else SpeechFormat()
        )
        inner.no_truncation()
        inner.no_padding()
        added: dict[int, AddedToken] = inner.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._special = frozenset(token for token, value in added.items() if value.special)
        self._control = ControlText({token: added[token] for token in self._special})
        self._vocab_size = 1 + max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
        self._byte_of = _byte_alphabet() if _is_byte_level(inner) else None
        self._token_bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """Token ids known to the tokenizer are below this."""
        return self._vocab_size

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens: they have no text."""
        return self._special

    @property
    def has_chat_template(self) -> bool:
        """Whether the model's files say how to lay out a chat."""
        return self._template is not None

    @property
    def speech(self) -> SpeechFormat:
        """How the model marks calls and reasoning in its answers to chats."""
        return self._speech

    @property
    def template_variables(self) -> frozenset[str]:
        """Variables of the chat template that a caller may set."""
        return self._template.free_variables if self._template is not None else frozenset()

    def control_token(self, text: str) -> int | None:
        """The control token that is spelled so, if there is one."""
        token_id = self._inner.token_to_id(text)
        return token_id if token_id in self._special else None

    def added_token(self, text: str) -> int | None:
        """The token that is spelled so and was added to the vocabulary, control token or not."""
        token_id = self._inner.token_to_id(text)
        return token_id if token_id in self._added else None

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Tokens of a plain prompt, with the special tokens that the tokenizer adds."""
        return _encode(self._inner, text, add_special_tokens=True)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Tokens of a text alone, without any that the tokenizer adds."""
        return _encode(self._inner, text, add_special_tokens=False)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Tokens of a conversation, up to where the assistant is to speak.

        Args:
            messages, tools, variables: see `ChatTemplate.render`.

        Raises:
            ChatTemplateError: there is no template, or it refuses these messages.
        """
        if self._template is None:
            raise ChatTemplateError(
                "this model has no chat template; send `prompt` or `tokens` instead"
            )
        given: list[Any] = [list(messages), list(tools), dict(variables or {})]
        if not self._control.appears_in(given):
            rendered = self._template.render(*given)
            return _encode(self._inner, rendered, add_special_tokens=False)
        disguise = self._control.disguise()
        # Only text of the template's own can spell a control token now.
        rendered = self._template.render(*disguise.hide(given))
        return self._control.encode(rendered, disguise, self._plain_encoder())

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of all tokens at once, without special tokens."""
        return str(self._inner.decode(list(token_ids), skip_special_tokens=True))

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Text of all tokens at once, special ones by name."""
        return str(self._inner.decode(list(token_ids), skip_special_tokens=False))

    def spell(self, token_id: int) -> bytes:
        """What a token alone spells, perhaps a part of a character; special tokens by name."""
        if token_id in self._special:
            return str(self._inner.id_to_token(token_id)).encode()
        if self._byte_of is not None:
            return self._bytes_of_token(token_id)
        return self.decode((token_id,)).encode()

    def decoder(self, marks: Sequence[str] = ()) -> TokenDecoder:
        """A fresh decoder for one request's tokens; control tokens spelled as `marks` have text."""
        inner: TokenDecoder = (
            ByteTokenDecoder(self._bytes_of_token)
            if self._byte_of is not None
            else WindowTokenDecoder(self.decode, self._special)
        )
        spellings = {
            token_id: mark for mark in marks if (token_id := self.control_token(mark)) is not None
        }
        return MarkDecoder(inner, spellings) if spellings else inner

    def _plain_encoder(self) -> PlainEncoder:
        # A second tokenizer, because the switch on the first would reach other threads. Chats
        # that spell control tokens are rare enough to make it anew.
        plain = Tokenizer.from_str(self._inner.to_str())
        plain.encode_special_tokens = True
        return PlainEncoder(
            lambda text: _encode(plain, text, add_special_tokens=False), self._special
        )

    def _bytes_of_token(self, token_id: int) -> bytes:
        known = self._token_bytes.get(token_id)
        if known is None:
            known = self._token_bytes[token_id] = self._spell_bytes(token_id)
        return known

    def _spell_bytes(self, token_id: int) -> bytes:
        text = None if token_id in self._special else self._inner.id_to_token(token_id)
        if text is None or self._byte_of is None:
            return b""
        try:
            return bytes(self._byte_of[character] for character in text)
        except KeyError:
            # An added token is written as it reads, not in the byte alphabet.
            return str(text).encode()


def load_tokenizer(
    directory: Path | str, tool_format: str = "auto", reasoning_format: str = "auto"
) -> ModelTokenizer:
    """Read `tokenizer.json`, `tokenizer_config.json` and the chat template of a model directory.

    For the formats see `speech_format`.

    Raises:
        ValueError: a format is not known.
        TokenizerFilesError: a file is missing or malformed.
        ChatTemplateError: the chat template cannot be read.
    """
    folder = Path(directory)
    file = folder / "tokenizer.json"
    if not file.exists():
        raise TokenizerFilesError(
            f"{file} does not exist; give a directory in Hugging Face layout whose tokenizer is "
            "saved in the fast format"
        )
    try:
        inner = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerFilesError(f"{file} is not a tokenizer: {error}") from None
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens({**_read_json(folder / "special_tokens_map.json"), **config})
    source = read_chat_template(folder, config)
    template = ChatTemplate(source, special_tokens) if source is not None else None
    return ModelTokenizer(inner, template, tool_format, reasoning_format)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerFilesError(f"{path} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in _SPECIAL_TOKEN_NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _encode(inner: Tokenizer, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    if len(text) <= _QUICK_CHARACTERS:
        return tuple(inner.encode(text, add_special_tokens=add_special_tokens).ids)
    (encoding,) = inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return tuple(encoding.ids)


def _is_byte_level(inner: Tokenizer) -> bool:
    decoder = json.loads(inner.to_str()).get("decoder") or {}
    if decoder.get("type") == "Sequence":
        steps = decoder.get("decoders", [])
        return len(steps) == 1 and steps[0].get("type") == "ByteLevel"
    return bool(decoder.get("type") == "ByteLevel")


def _byte_alphabet() -> dict[str, int]:
    """Which byte each character of a byte-level token stands for.

    Bytes that print stand for themselves; the others, in order, for the characters from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    if set(alphabet) != set(ByteLevel.alphabet()):
        raise RuntimeError("the tokenizers library uses another byte alphabet than this server")
    return alphabet
