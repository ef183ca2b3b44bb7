import random

from blockyard.scheduler.watermark import GrowthWatermark


def measured(num_blocks: int, grown: int, endings: int = 64) -> GrowthWatermark:
    watermark = GrowthWatermark(num_blocks)
    for _ in range(endings):
        watermark.observe(grown, 1)
    return watermark


def test_before_anything_ended_each_running_request_keeps_one_block_free() -> None:
    watermark = GrowthWatermark(3200)
    watermark.observe(1000, 3)
    assert watermark.growth_per_ending is None
    assert watermark.blocks(7) == 7
    assert watermark.blocks(5000) == 101
    assert GrowthWatermark(4).blocks(3) == 1


def test_long_answers_keep_more_free_than_short_ones() -> None:
    assert measured(4000, grown=25).blocks(49) == 88
    assert measured(4000, grown=2).blocks(49) == 7
    assert measured(4000, grown=0).blocks(49) == 0


def test_it_grows_with_the_root_of_those_who_run() -> None:
    watermark = measured(100_000, grown=20)
    assert watermark.blocks(400) == 10 * watermark.blocks(4)


def test_never_more_than_an_eighth_of_the_pool_and_a_pool_of_one_can_admit() -> None:
    assert measured(800, grown=10_000).blocks(50) == 101
    assert measured(4, grown=10_000).blocks(50) == 1


def test_rates_follow_what_runs_now() -> None:
    watermark = measured(100_000, grown=100, endings=500)
    for _ in range(5 * 64):
        watermark.observe(10, 1)
    growth = watermark.growth_per_ending
    assert growth is not None and 10 <= growth < 12


def test_noise_evens_out() -> None:
    rng = random.Random(1)
    watermark = GrowthWatermark(10_000)
    for _ in range(4000):
        watermark.observe(rng.randrange(11), rng.random() < 0.2)
    growth = watermark.growth_per_ending
    assert growth is not None and 18 < growth < 34
