"""Calls and reasoning are found in texts however these are divided, and no mark is ever told."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockyard.cluster.request.call_reader import CallReader
from blockyard.cluster.request.reasoning_reader import ReasoningReader
from blockyard.cluster.request.speech_format import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ThinkTags,
    ToolFormat,
    speech_format,
)

NAMES = frozenset({"weather", "add"})
THINK = ThinkTags("<think>", "</think>")
HERMES, LLAMA3, MISTRAL = ToolFormat.HERMES, ToolFormat.LLAMA3, ToolFormat.MISTRAL
PARIS = '{"city": "Paris \\"}{<\\u00e9", "days": [1, {"a": null}]}'


def call(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def tagged(name: str, arguments: str) -> str:
    return f"<tool_call>\n{call(name, arguments)}\n</tool_call>"


def read(
    how: ToolFormat, pieces: list[str], cut: bool = False, most: int | None = None
) -> tuple[str, list[tuple[str, str]]]:
    """What was told: the text, and each call's name and arguments."""
    reader = CallReader(how, NAMES, most)
    news = [piece for text in pieces for piece in reader.push(text)] + reader.finish(cut)
    text, calls = "", []
    for piece in news:
        if isinstance(piece, str):
            text += piece
            # What is told as text of these answers never is a part of a mark.
        elif piece.name:
            calls.append((piece.name, ""))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.arguments)
    return text, calls


ANSWERS: list[tuple[str, ToolFormat, str, str, list[tuple[str, str]]]] = [
    ("one", HERMES, tagged("weather", PARIS), "", [("weather", PARIS)]),
    (
        "text before, two, blanks between and behind",
        HERMES,
        f"Let me see: 1 < 2.\n\n{tagged('weather', PARIS)}\n{tagged('add', '{}')}\n ",
        "Let me see: 1 < 2.",
        [("weather", PARIS), ("add", "{}")],
    ),
    (
        "text behind",
        HERMES,
        f"{tagged('add', '{}')} and so on",
        " and so on",
        [("add", "{}")],
    ),
    (
        "arguments before the name",
        HERMES,
        f'<tool_call>{{"arguments": {PARIS}, "id": 4, "name": "add"}}</tool_call>',
        "",
        [("add", PARIS)],
    ),
    ("no arguments", HERMES, '<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
    (
        "arguments as a string, or null",
        HERMES,
        f"{tagged('add', json.dumps(PARIS))}{tagged('add', 'null')}",
        "",
        [("add", PARIS), ("add", "{}")],
    ),
    (
        "one brace too many",
        HERMES,
        f"{tagged('add', '{}')[:-12]}}}</tool_call>",
        "",
        [("add", "{}")],
    ),
    (
        "no call inside: text as a whole",
        HERMES,
        "see <tool_call>what?</tool_call> there",
        "see <tool_call>what?</tool_call> there",
        [],
    ),
    (
        "an object that is no call",
        HERMES,
        '<tool_call>{"city": 1}</tool_call>',
        '<tool_call>{"city": 1}</tool_call>',
        [],
    ),
    ("text alone", HERMES, "a < b <tool_ca> \n", "a < b <tool_ca> \n", []),
    ("the beginning of a mark as the last word", HERMES, "a <tool", "a <tool", []),
    ("one", LLAMA3, call("weather", PARIS, "parameters"), "", [("weather", PARIS)]),
    (
        "two behind the mark",
        LLAMA3,
        f"<|python_tag|>{call('add', '{}', 'parameters')}; {call('weather', PARIS)}",
        "",
        [("add", "{}"), ("weather", PARIS)],
    ),
    (
        "a type",
        LLAMA3,
        '\n{"type": "function", "function": "add", "parameters": {}}',
        "",
        [("add", "{}")],
    ),
    (
        "JSON that is no call",
        LLAMA3,
        '{"answer": {"name": "add"}} ',
        '{"answer": {"name": "add"}} ',
        [],
    ),
    ("a function that is not there", LLAMA3, '{"name": "rm"}', '{"name": "rm"}', []),
    ("text", LLAMA3, 'So {"name": "add"}', 'So {"name": "add"}', []),
    ("half an object as the whole answer", LLAMA3, '{"na', '{"na', []),
    (
        "a list",
        MISTRAL,
        f"[TOOL_CALLS] [{call('weather', PARIS)}, {call('add', '{}')}]",
        "",
        [("weather", PARIS), ("add", "{}")],
    ),
    (
        "name and arguments, text before",
        MISTRAL,
        f"Well.\n[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{{}}",
        "Well.",
        [("weather", PARIS), ("add", "{}")],
    ),
    ("name and arguments without a mark", MISTRAL, "[TOOL_CALLS]add{}", "", [("add", "{}")]),
    ("no call", MISTRAL, "[TOOL_CALLS]!", "[TOOL_CALLS]!", []),
    ("other brackets", MISTRAL, "[1] [TOOL] [TOOL_CALL", "[1] [TOOL] [TOOL_CALL", []),
]


@pytest.mark.parametrize(
    ("how", "said", "text", "calls"),
    [row[1:] for row in ANSWERS],
    ids=[f"{row[1]}: {row[0]}" for row in ANSWERS],
)
def test_calls_are_found_however_the_text_is_divided(
    how: ToolFormat, said: str, text: str, calls: list[tuple[str, str]]
) -> None:
    assert read(how, [said]) == (text, calls)
    assert read(how, list(said)) == (text, calls)
    for border in range(len(said) + 1):
        assert read(how, [said[:border], said[border:]]) == (text, calls)


@pytest.mark.parametrize("how", [HERMES, LLAMA3, MISTRAL])
def test_an_answer_cut_anywhere_tells_no_mark(how: ToolFormat) -> None:
    whole = {
        HERMES: f"Yes. {tagged('weather', PARIS)}\n{tagged('add', '{}')}",
        LLAMA3: f"<|python_tag|>{call('weather', PARIS)}; {call('add', '{}')}",
        MISTRAL: f"Yes. [TOOL_CALLS] [{call('weather', PARIS)}, {call('add', '{}')}]",
    }[how]
    expected = "" if how is LLAMA3 else "Yes."
    for end in range(len(whole)):
        text, calls = read(how, list(whole[:end]), cut=True)
        assert expected.startswith(text.rstrip())
        assert [name for name, _ in calls] == ["weather", "add"][: len(calls)]
        assert all(PARIS.startswith(arguments) for _, arguments in calls[:1])


def test_arguments_are_told_while_they_come() -> None:
    reader = CallReader(HERMES, NAMES)
    told = [reader.push(character) for character in tagged("weather", PARIS)]
    pieces = [piece for news in told for piece in news]
    assert len(pieces) > len(PARIS) // 2
    assert max(len(piece.arguments) for piece in pieces if not isinstance(piece, str)) == 1


def test_an_answer_is_full_after_so_many_calls() -> None:
    reader = CallReader(HERMES, NAMES, most_calls=1)
    said = f"{tagged('weather', PARIS)}\n{tagged('add', '{}')}"
    news: list[Any] = [piece for character in said for piece in reader.push(character)]
    assert reader.full
    assert [piece.name for piece in news if piece.name] == ["weather"]
    assert "".join(piece.arguments for piece in news) == PARIS


def think(pieces: list[str], begun: bool = False, cut: bool = False) -> tuple[str, str]:
    reader = ReasoningReader(THINK, begun)
    news = [reader.push(piece) for piece in pieces] + [reader.finish(cut)]
    return "".join(new.reasoning for new in news), "".join(new.text for new in news)


@pytest.mark.parametrize(
    ("said", "begun", "reasoning", "text"),
    [
        ("<think>\nhm </th\n\nso\n</think>\n\nyes \n", False, "hm </th\n\nso", "yes \n"),
        ("\n<think></think>yes", False, "", "yes"),
        ("hm</think> yes <think>", True, "hm", "yes <think>"),
        ("yes <think>no</think>", False, "", "yes <think>no</think>"),
        (" <thin", False, "", " <thin"),
        ("never ending </thi", True, "never ending </thi", ""),
    ],
)
def test_reasoning_is_parted_however_the_text_is_divided(
    said: str, begun: bool, reasoning: str, text: str
) -> None:
    assert think([said], begun) == (reasoning, text)
    assert think(list(said), begun) == (reasoning, text)
    for border in range(len(said) + 1):
        assert think([said[:border], said[border:]], begun) == (reasoning, text)


def test_reasoning_cut_anywhere_tells_no_tag() -> None:
    said = "<think>hm</think>yes"
    for end in range(len(said)):
        reasoning, text = think(list(said[:end]), cut=True)
        assert "hm".startswith(reasoning)
        assert "yes".startswith(text)


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", '{"name": "add"', "}", " ", "<", "x"]))
)
def test_whatever_is_said_is_told_alike_in_pieces(pieces: list[str]) -> None:
    said = "".join(pieces)
    assert read(HERMES, pieces) == read(HERMES, [said]) == read(HERMES, list(said))


@given(
    st.lists(
        st.sampled_from(["[TOOL_CALLS]", "[ARGS]", "[", "]", "{", "}", ",", "add", '"name":"add"'])
    )
)
def test_so_is_what_mistral_says(pieces: list[str]) -> None:
    said = "".join(pieces)
    assert read(MISTRAL, pieces) == read(MISTRAL, [said]) == read(MISTRAL, list(said))


class TestFormats:
    @pytest.mark.parametrize(
        ("template", "tells", "tools", "reasoning"),
        [
            ("{{ tools }} <tool_call> </think>", True, HERMES, THINK),
            ("{{ tools }} [TOOL_CALLS] [/THINK]", True, MISTRAL, ThinkTags("[THINK]", "[/THINK]")),
            ("{{ tools }} <|start_header_id|>", True, LLAMA3, None),
            ("{{ tools }} <tool_call><function=f>", True, None, None),
            ("{{ tools }} something else", True, None, None),
            ("no word of them", False, HERMES, None),
        ],
    )
    def test_the_template_tells(
        self, template: str, tells: bool, tools: ToolFormat, reasoning: ThinkTags
    ) -> None:
        found = speech_format(template, lambda name: tells and name == "tools")
        assert (found.tools, found.reasoning, found.tells_tools) == (tools, reasoning, tells)

    def test_the_operator_overrides(self) -> None:
        for how in TOOL_FORMATS[1:]:
            found = speech_format("[TOOL_CALLS]", lambda _: True, how).tools
            assert found == (None if how == "none" else how)
        for how in REASONING_FORMATS[1:]:
            found_tags = speech_format("</think>", lambda _: True, "auto", how).reasoning
            assert (found_tags is None) == (how == "none")

    def test_an_unknown_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="known are auto, hermes"):
            speech_format("", lambda _: True, "xml")
