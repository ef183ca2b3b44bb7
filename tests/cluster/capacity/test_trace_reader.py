from pathlib import Path

import pytest

from blockyard.cluster.capacity.quantities import format_bytes, parse_bytes
from blockyard.cluster.capacity.trace_reader import TraceError, TraceRequest, read_trace

CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
LINES = """{"timestamp": 500, "input_length": 6758, "output_length": 5, "hash_ids": [0, 1]}

{"timestamp": 1500, "input_length": 7, "output_length": 490}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_csv_trace(tmp_path: Path, mark: str) -> None:
    first, second = read_trace(written(tmp_path, mark + CSV))
    assert first == TraceRequest(0.0, 374, 44)
    assert second.arrival_seconds == pytest.approx(4.314579)
    assert second.total_tokens == 505


def test_a_json_lines_trace(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, LINES)) == [
        TraceRequest(0.0, 6758, 5, (0, 1)),
        TraceRequest(1.0, 7, 490),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no trace"),
        ("a,b\n1,2\n", "is no trace"),
        (CSV + "2023-11-16 18:15:51,x,5\n", "line 4.*'x'"),
        (CSV + "2023-11-16 18:15:51,5\n", "line 4"),
        (CSV + "yesterday,5,5\n", "line 4.*yesterday"),
        (LINES + '{"timestamp": 0, "input_length": 1}\n', "line 4.*output_length"),
        (LINES + "{\n", "line 4"),
        (LINES + '{"timestamp": 0, "input_length": -1, "output_length": 1}', "line 4.*-1"),
    ],
)
def test_a_broken_trace_is_told_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, text))


def test_a_trace_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(tmp_path / "binary")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80GiB", 85_899_345_920),
        ("40 GB", 40_000_000_000),
        ("2.5gb", 2_500_000_000),
        ("300MB", 300_000_000),
        ("50e9", 50_000_000_000),
        ("1_000", 1000),
        ("0B", 0),
    ],
)
def test_amounts_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "80G", "-1GB", "1e999", "nan", "12 apples"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"GiB|more memory"):
        parse_bytes(text)


def test_amounts_for_people() -> None:
    amounts = (0, 999, 53_687_091_200, 2.5e12)
    assert [format_bytes(amount) for amount in amounts] == ["0 B", "999 B", "53.7 GB", "2.5 TB"]
