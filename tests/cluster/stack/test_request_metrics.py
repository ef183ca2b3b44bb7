"""What is counted of requests and steps of a running deployment, when there is too little room."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from blockyard.cluster.books.step_meter import STEP_PARTS
from blockyard.cluster.metrics import encode_reports
from blockyard.scheduler.request import RequestSpec

Spec = Callable[..., RequestSpec]
Collected = Callable[..., Awaitable[Any]]


async def scraped(stack: Any) -> dict[tuple[str, ...], float]:
    """Values by name and values of labels, the group and the model left out."""
    dispatcher = stack.dispatcher
    text = encode_reports(await dispatcher.reports(), "", dispatcher.meters)[0].decode()
    return {
        (s.name, *(v for k, v in s.labels.items() if k not in ("group", "model"))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


async def test_a_preempted_request_has_one_first_token(
    stack: Any, spec: Spec, collected: Collected
) -> None:
    group = await stack.add_group(num_blocks=40)
    num_requests, new_tokens = 30, 20

    async def run(number: int) -> None:
        prompt = tuple((number * 7 + n) % 251 for n in range(5 + number))
        request = spec(f"r{number}", prompt, new_tokens)
        await collected(await stack.dispatcher.submit("witness", request))

    await asyncio.gather(*(run(number) for number in range(num_requests)))
    await stack.until(stack.idle)
    ledger = group.server.ledger()
    assert ledger.preemptions > 0
    told = await scraped(stack)
    assert told["blockyard_request_preemptions_total",] == ledger.preemptions
    assert told["blockyard_preemptions_total",] == ledger.preemptions
    for once in ("first_token", "queue", "request"):
        assert told[f"blockyard_{once}_seconds_count",] == num_requests
    # Every token but the first of each has one before it, however often its request was preempted.
    assert told["blockyard_inter_token_seconds_count",] == num_requests * (new_tokens - 1)
    assert told["blockyard_request_tokens_total", "answer"] == num_requests * new_tokens
    assert told["blockyard_requests_ended_total", "length"] == num_requests
    kinds = ("swapped", "recomputed", "held")
    assert sum(told["blockyard_preempted_total", kind] for kind in kinds) == ledger.preemptions
    assert told["blockyard_preemption_seconds_total", "recomputed"] > 0
    assert told["blockyard_stalled_steps_total",] == 0


async def test_every_step_is_timed_once(stack: Any, spec: Spec, collected: Collected) -> None:
    group = await stack.add_group(ranks=2)
    await collected(await stack.dispatcher.submit("witness", spec("a", (1, 2, 3), 10)))
    await stack.until(stack.idle)
    told = await scraped(stack)
    assert group.server.ledger().step == 10
    for part in STEP_PARTS:
        assert told["blockyard_step_seconds_count", part] == 10
    for part in ("plan", "wire", "forward", "commit"):
        assert told["blockyard_step_seconds_sum", part] > 0
