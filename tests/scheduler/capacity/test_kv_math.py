import pytest

from blockyard.scheduler.capacity.kv_math import KNOWN_SHAPES, ModelShape, element_bits, parse_shape


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("llama-2-13b", "fp16", 819_200),
        ("llama-2-7b", "fp16", 524_288),
        ("llama-3-8b", "bf16", 131_072),
        ("smollm2-135m", "fp32", 46_080),
        ("llama-3-8b", "fp8", 65_536),
        ("smollm2-135m", "int8", 46_080 // 4 + 2 * 30 * 3 * 4),
    ],
)
def test_kv_bytes_of_a_token(name: str, dtype: str, expected: int) -> None:
    assert KNOWN_SHAPES[name].kv_bytes_per_token(dtype) == expected


def test_weights_by_width() -> None:
    shape = ModelShape(32, 8, 128, 8_000_000_000)
    assert [shape.weight_bytes(dtype) for dtype in ("fp32", "fp16", "fp8", "int4")] == [
        32_000_000_000,
        16_000_000_000,
        8_000_000_000,
        4_000_000_000,
    ]


@pytest.mark.parametrize(("ranks", "heads"), [(1, 3), (2, 2), (3, 1), (4, 1)])
def test_the_fullest_rank_decides_and_heads_repeat_past_their_number(
    ranks: int, heads: int
) -> None:
    shape = KNOWN_SHAPES["smollm2-135m"]
    assert shape.rank_kv_heads(ranks) == heads
    assert shape.rank_kv_bytes_per_token("fp32", ranks) == 46_080 // 3 * heads


def test_a_shape_is_read_from_text() -> None:
    assert parse_shape("32,8,128,8e9") == ModelShape(32, 8, 128, 8_000_000_000)


@pytest.mark.parametrize("text", ["", "32,8,128", "32,8,128,8e9,1", "32,8.5,128,8e9", "a,b,c,d"])
def test_a_malformed_shape_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="32,8,128,8e9"):
        parse_shape(text)


def test_an_empty_shape_and_an_unknown_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match="num_kv_heads is 0"):
        parse_shape("32,0,128,8e9")
    with pytest.raises(ValueError, match="fp7"):
        element_bits("fp7")
