import pytest

from blockyard.cluster.capacity.server_metrics import MetricsUnreadable, read_sample

VLLM = """vllm:num_requests_running{engine="0"} 3.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="2000"} 1.0
"""

SGLANG = """sglang:num_running_reqs{tp_rank="0"} 20.0
sglang:num_running_reqs{tp_rank="1"} 20.0
sglang:num_used_tokens{tp_rank="0"} 12000.0
"""


def test_engines_without_a_size_of_their_own_have_the_one_that_is_told() -> None:
    sample = read_sample(VLLM)
    assert (sample.capacity_tokens, sample.used_tokens) == (64_000, 24_000)


def test_what_a_server_does_not_publish_is_not_made_up() -> None:
    sample = read_sample("vllm:num_requests_running 3.0\n")
    assert (sample.running, sample.waiting, sample.capacity_tokens) == (3, None, None)
    assert (sample.used_tokens, sample.held_tokens, sample.limit) == (None, None, None)
    assert sample.p99_length is None


@pytest.mark.parametrize(("last_bucket", "expected"), [(100, 1400), (98, None)])
def test_a_p99_past_the_last_bucket_is_not_known(last_bucket: int, expected: int | None) -> None:
    lines = ["vllm:num_requests_running 3.0"]
    for name, end in (("prompt", 1000), ("generation", 400)):
        metric = f"vllm:request_{name}_tokens_bucket"
        lines.append(f'{metric}{{le="{end}"}} {last_bucket}')
        lines.append(f'{metric}{{le="+Inf"}} 100')
    assert read_sample("\n".join(lines) + "\n").p99_length == expected


def test_ranks_of_one_engine_count_once() -> None:
    assert read_sample(SGLANG).running == 20


def test_newer_vllm_tells_its_size_and_limit_in_one_place() -> None:
    labels = 'kv_cache_size_tokens="8192",kv_cache_max_concurrency="4.0",num_gpu_blocks="None"'
    sample = read_sample(
        f"vllm:cache_config_info{{{labels}}} 1.0\nvllm:num_requests_running 1.0\n"
        "vllm:kv_cache_usage_perc 0.5\n"
    )
    assert (sample.capacity_tokens, sample.limit, sample.used_tokens) == (8192, 2048, 4096)


def test_older_vllm_has_another_name_for_use() -> None:
    text = VLLM.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert read_sample(text).used_tokens == 24_000


def test_sglang_ranks_of_data_parallelism_add_up() -> None:
    text = SGLANG.replace("tp_rank", "dp_rank")
    assert read_sample(text).running == 40


def test_sglang_tells_shared_prefixes_apart() -> None:
    more = "sglang:decode_sum_seq_lens 30000.0\nsglang:max_total_num_tokens 50000.0\n"
    sample = read_sample(SGLANG + more + "sglang:context_len 8192.0\n")
    assert (sample.used_tokens, sample.held_tokens) == (12_000, 30_000)
    assert (sample.capacity_tokens, sample.limit) == (50_000, 8192)


@pytest.mark.parametrize(
    ("text", "message"),
    [("up 1\n", "no metrics of vLLM"), ("<html>", "no"), ("a{b=} x", "no Prometheus text")],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(MetricsUnreadable, match=message):
        read_sample(text)
