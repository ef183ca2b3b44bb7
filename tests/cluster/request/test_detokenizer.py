from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from blockyard.cluster.request.detokenizer import Detokenizer, StopMatcher
from blockyard.cluster.request.token_decoder import REPLACEMENT
from blockyard.cluster.tokenizer import ModelTokenizer

Spell = Callable[[str], list[int]]


def pieces_of(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    pieces = [detokenizer.push(token).text for token in token_ids]
    return [*pieces, detokenizer.flush().text]


def first_completion(text: str, stops: list[str]) -> str | None:
    """What the matcher must leave, said the slow way: try every end, then the longest stop."""
    for end in range(1, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            return text[: end - max(map(len, completed))]
    return None


class TestCharacters:
    @pytest.mark.parametrize("text", ["😀", "한글", "e\u0301", "naïve ✓ 日本語 👩‍👩‍👧"])
    def test_characters_come_whole(
        self, tokenizer: ModelTokenizer, spell: Spell, text: str
    ) -> None:
        pieces = pieces_of(Detokenizer(tokenizer.decoder()), spell(text))
        assert "".join(pieces) == text
        assert [piece for piece in pieces if piece] == list(text)

    def test_an_invalid_byte_becomes_one_mark_once_that_is_certain(
        self, tokenizer: ModelTokenizer, spell: Spell
    ) -> None:
        start_of_emoji = spell("😀")[:2]
        pieces = pieces_of(Detokenizer(tokenizer.decoder()), [*start_of_emoji, *spell("ab")])
        assert pieces == ["", "", REPLACEMENT + "a", "b", ""]

    def test_an_unfinished_character_is_flushed_as_one_mark(
        self, tokenizer: ModelTokenizer, spell: Spell
    ) -> None:
        pieces = pieces_of(Detokenizer(tokenizer.decoder()), spell("a😀")[:3])
        assert pieces == ["a", "", "", REPLACEMENT]

    def test_special_tokens_and_unknown_ids_have_no_text(
        self, tokenizer: ModelTokenizer, spell: Spell
    ) -> None:
        ids = [1, *spell("é")[:1], 2, tokenizer.vocab_size + 5, *spell("é")[1:], 0]
        assert "".join(pieces_of(Detokenizer(tokenizer.decoder()), ids)) == "é"

    @given(data=st.data())
    @settings(max_examples=200)
    def test_pieces_joined_are_the_text_of_all_tokens(
        self, tokenizer: ModelTokenizer, data: st.DataObject
    ) -> None:
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=20))
        pieces = pieces_of(Detokenizer(tokenizer.decoder()), ids)
        assert "".join(pieces) == tokenizer.decode(ids)


class TestOtherTokenizers:
    """Pieces with a word mark, and bytes for what has no piece (the SentencePiece way)."""

    @pytest.fixture
    def pieces(self) -> ModelTokenizer:
        vocab = {"<unk>": 0, "▁hello": 1, "▁world": 2, "s": 3, "▁": 4}
        vocab |= {f"<0x{byte:02X}>": 5 + byte for byte in range(256)}
        inner = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
        inner.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        return ModelTokenizer(inner)

    def test_spaces_and_characters_survive(self, pieces: ModelTokenizer) -> None:
        emoji = [5 + byte for byte in "😀".encode()]
        ids = [1, 2, 3, 4, *emoji, *emoji, 2, *(5 + byte for byte in "é".encode()), 1]
        deltas = pieces_of(Detokenizer(pieces.decoder()), ids)
        assert "".join(deltas) == pieces.decode(ids) == "hello worlds 😀😀 worldé hello"
        assert not any(REPLACEMENT in delta for delta in deltas)

    def test_broken_bytes_are_held_no_longer_than_a_character(self, pieces: ModelTokenizer) -> None:
        broken = [5 + 0xFF] * 40
        deltas = pieces_of(Detokenizer(pieces.decoder()), broken)
        assert "".join(deltas) == REPLACEMENT * 40
        assert sum(map(bool, deltas)) >= 5


class TestStops:
    # The output and the stop strings of a report in the field, and what must be left.
    @pytest.mark.parametrize(
        ("stops", "left", "stopped"),
        [
            (["def"], "abc", True),
            (["efghijk"], "abcdefghij", False),
            (["j"], "abcdefghi", True),
            (["cd", "de"], "ab", True),
            (["de", "cde"], "ab", True),
            (["abcdefghij"], "", True),
            (["xyz", "ghi"], "abcdef", True),
            ([], "abcdefghij", False),
        ],
    )
    def test_the_text_is_cut_before_the_stop(
        self,
        tokenizer: ModelTokenizer,
        spell: Spell,
        stops: list[str],
        left: str,
        stopped: bool,
    ) -> None:
        detokenizer = Detokenizer(tokenizer.decoder(), stops)
        text = ""
        for token in spell("abcdefghij"):
            piece = detokenizer.push(token)
            text += piece.text
            if piece.stopped:
                break
        else:
            piece = detokenizer.flush()
            text += piece.text
        assert (text, piece.stopped) == (left, stopped)

    def test_a_possible_start_is_held_and_given_out_when_it_is_none(self) -> None:
        matcher = StopMatcher(["abcd"])
        assert matcher.push("xabc").text == "x"
        assert matcher.push("e").text == "abce"
        assert matcher.push("ab").text == ""
        assert matcher.flush() == "ab"

    def test_nothing_is_held_that_starts_no_stop(self) -> None:
        matcher = StopMatcher(["\n\nUser:"])
        assert matcher.push("hello").text == "hello"

    def test_a_stop_with_a_character_of_many_bytes(
        self, tokenizer: ModelTokenizer, spell: Spell
    ) -> None:
        detokenizer = Detokenizer(tokenizer.decoder(), ["✓ ok"])
        pieces = [detokenizer.push(token) for token in spell("yes ✓ ok then")]
        # What comes after a stop is not given out either.
        assert "".join(piece.text for piece in pieces) == "yes "
        assert [piece.stopped for piece in pieces] == [False] * 9 + [True] * 6
        assert detokenizer.flush().text == ""

    def test_a_stop_may_complete_at_the_flush(
        self, tokenizer: ModelTokenizer, spell: Spell
    ) -> None:
        detokenizer = Detokenizer(tokenizer.decoder(), [REPLACEMENT])
        detokenizer.push(spell("é")[0])
        assert detokenizer.flush().stopped

    @given(
        text=st.text("ab", max_size=30),
        stops=st.lists(st.text("ab", min_size=1, max_size=6), max_size=4),
        cuts=st.lists(st.integers(0, 30), max_size=6),
    )
    @settings(max_examples=300)
    @example(text="aaab", stops=["aab"], cuts=[2])
    @example(text="ababac", stops=["abac"], cuts=[])
    def test_the_same_as_searching_the_whole_text(
        self, text: str, stops: list[str], cuts: list[int]
    ) -> None:
        matcher = StopMatcher(stops)
        edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
        given_out, stopped = "", False
        for start, end in pairwise(edges):
            piece = matcher.push(text[start:end])
            given_out += piece.text
            stopped = piece.stopped
            if stopped:
                break
            # What is out can never be taken back, and what is held can still become a stop.
            held = text[len(given_out) : end]
            assert not held or any(stop.startswith(held) for stop in stops)
        expected = first_completion(text, stops)
        if expected is None:
            assert not stopped
            assert given_out + matcher.flush() == text
        else:
            assert stopped
            assert given_out == expected
