"""What the Prometheus text of a vLLM, SGLang or TGI server says about its KV memory.

Each server publishes other facts under other names; what one does not publish is None, and what is
only estimated is said in a note. Units: tokens, requests.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

__all__ = ["MetricsUnreadable", "ServerSample", "read_sample"]


class MetricsUnreadable(ValueError):
    """The text is no Prometheus text, or of a server we do not know."""


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One moment of a server.

    Attributes:
        server: `vLLM`, `SGLang` or `TGI`.
        running, waiting: requests.
        capacity_tokens: what its KV memory can hold.
        used_tokens: what its memory holds now.
        held_tokens: what its running requests hold, counting a shared prefix for each of them;
            the same as `used_tokens` where the server does not tell the two apart.
        limit: longest request.
        p99_length: about; upper ends of the histogram buckets.
        notes: what is estimated, and how.
    """

    server: str
    running: float
    waiting: float | None = None
    capacity_tokens: int | None = None
    used_tokens: float | None = None
    held_tokens: float | None = None
    limit: int | None = None
    p99_length: float | None = None
    notes: tuple[str, ...] = ()


class _Metrics:
    """Samples by name. Tensor-parallel ranks of one engine say the same, so they count once."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, []).append(sample)

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self._by_name)

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(sample.labels) for sample in self._by_name.get(name, ())]

    def by_engine(self, *names: str) -> dict[str, float]:
        """Values of the first of `names` that is there: largest over ranks, by engine."""
        found: dict[str, float] = {}
        for name in names:
            for sample in self._by_name.get(name, ()):
                labels = sample.labels
                engine = labels.get("engine") or labels.get("dp_rank") or ""
                found[engine] = max(found.get(engine, 0.0), float(sample.value))
            if found:
                break
        return found

    def total(self, *names: str) -> float | None:
        values = self.by_engine(*names)
        return sum(values.values()) if values else None

    def mean(self, name: str) -> float | None:
        """Mean of a histogram or summary."""
        count = sum(sample.value for sample in self._by_name.get(f"{name}_count", ()))
        total = sum(sample.value for sample in self._by_name.get(f"{name}_sum", ()))
        return total / count if count else None

    def p99(self, name: str) -> float | None:
        """Upper end of the bucket with the 99th percentile; None past the last bucket."""
        buckets: dict[float, float] = {}
        for sample in self._by_name.get(f"{name}_bucket", ()):
            end = float(sample.labels["le"])
            buckets[end] = buckets.get(end, 0.0) + sample.value
        total = max(buckets.values(), default=0.0)
        for end in sorted(buckets):
            if total and buckets[end] >= 0.99 * total:
                return end if end != float("inf") else None
        return None


def read_sample(text: str) -> ServerSample:
    """Read one answer of a `/metrics` endpoint.

    Raises:
        MetricsUnreadable: see there.
    """
    try:
        families = list(text_string_to_metric_families(text))
        metrics = _Metrics(sample for family in families for sample in family.samples)
    except (ValueError, KeyError, IndexError) as error:
        raise MetricsUnreadable(f"this is no Prometheus text: {error}") from None
    if metrics.has("vllm:"):
        return _read_vllm(metrics)
    if metrics.has("sglang:"):
        return _read_sglang(metrics)
    if metrics.has("tgi_"):
        return _read_tgi(metrics)
    raise MetricsUnreadable(
        "these are no metrics of vLLM (vllm:...), SGLang (sglang:..., with --enable-metrics) or "
        "TGI (tgi_...); give --capacity-tokens, --running, --mean-length and --max-seq-len instead"
    )


def _read_vllm(metrics: _Metrics) -> ServerSample:
    """vLLM: a fraction of blocks in use, and the size of the pool in the labels of an info."""
    capacities: dict[str, int] = {}
    limit = None
    for labels in metrics.labels("vllm:cache_config_info"):
        blocks = _number(labels.get("num_gpu_blocks"))
        size = _number(labels.get("block_size"))
        tokens = _number(labels.get("kv_cache_size_tokens"))
        if tokens is None and blocks is not None and size is not None:
            tokens = blocks * size
        if tokens is not None:
            capacities[labels.get("engine", "")] = int(tokens)
        most = _number(labels.get("kv_cache_max_concurrency"))
        if tokens and most:
            limit = round(tokens / most)
    used = None
    usage = metrics.by_engine("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    if capacities and usage:
        fallback = next(iter(capacities.values()))
        capacities = {engine: capacities.get(engine, fallback) for engine in usage}
        used = sum(share * capacities[engine] for engine, share in usage.items())
    return ServerSample(
        server="vLLM",
        running=metrics.total("vllm:num_requests_running") or 0.0,
        waiting=metrics.total("vllm:num_requests_waiting"),
        capacity_tokens=sum(capacities.values()) or None,
        used_tokens=used,
        held_tokens=used,
        limit=limit,
        p99_length=_sum(
            metrics.p99("vllm:request_prompt_tokens"),
            metrics.p99("vllm:request_generation_tokens"),
        ),
        notes=(
            "vLLM counts whole blocks in use, so the tails of last blocks are counted as used",
            "a prefix that requests share is counted once, so they hold more than is shown",
        ),
    )


def _read_sglang(metrics: _Metrics) -> ServerSample:
    """SGLang: tokens in use, and (in newer versions) the sum over running requests."""
    capacity = metrics.total("sglang:max_total_num_tokens")
    used = metrics.total("sglang:num_used_tokens", "sglang:kv_used_tokens")
    usage = metrics.total("sglang:token_usage")
    notes: list[str] = []
    if capacity is None and used and usage:
        capacity = used / usage
        notes.append("the capacity is tokens in use over the share in use, so it is rounded")
    held = metrics.total("sglang:decode_sum_seq_lens")
    if not held:
        held = used
        notes.append(
            "a prefix that requests share is counted once, so they hold more than is shown"
        )
    limits = metrics.by_engine("sglang:context_len")
    return ServerSample(
        server="SGLang",
        running=metrics.total("sglang:num_running_reqs") or 0.0,
        waiting=metrics.total("sglang:num_queue_reqs"),
        capacity_tokens=int(capacity) if capacity else None,
        used_tokens=used,
        held_tokens=held,
        limit=int(max(limits.values())) if limits else None,
        p99_length=_sum(
            metrics.p99("sglang:prompt_tokens_histogram"),
            metrics.p99("sglang:generation_tokens_histogram"),
        ),
        notes=tuple(notes),
    )


def _read_tgi(metrics: _Metrics) -> ServerSample:
    """TGI: neither its capacity nor its use, so the latter is estimated from mean lengths."""
    running = metrics.total("tgi_batch_current_size") or 0.0
    prompt = metrics.mean("tgi_request_input_length")
    output = metrics.mean("tgi_request_generated_tokens")
    held = None
    if prompt is not None:
        held = running * (prompt + (output or 0.0) / 2)
    return ServerSample(
        server="TGI",
        running=running,
        waiting=metrics.total("tgi_queue_size"),
        used_tokens=held,
        held_tokens=held,
        p99_length=_sum(
            metrics.p99("tgi_request_input_length"), metrics.p99("tgi_request_generated_tokens")
        ),
        notes=(
            "TGI does not publish its use: a running request is counted with its mean prompt and "
            "half its mean answer",
        ),
    )


def _sum(prompt: float | None, output: float | None) -> float | None:
    return None if prompt is None or output is None else prompt + output


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
