"""Puts a load on a server: closed, so many at a time, or open, each when it is due.

In an open loop nobody waits for a slow server, and times count from when a request was due, not
from when there was time to send it. Units: seconds.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from blockyard.cluster.benchmark.load_endpoint import Endpoint, EndpointError, Outcome
from blockyard.cluster.benchmark.load_requests import LoadRequest

__all__ = ["run_load"]


async def run_load(
    endpoint: Endpoint,
    requests: Sequence[LoadRequest],
    concurrency: int | None,
    timeout_seconds: float,
    ended: Callable[[Outcome], None] = lambda outcome: None,
) -> tuple[Outcome, ...]:
    """Serve requests; their outcomes, in order.

    Args:
        endpoint: where to.
        requests: what.
        concurrency: most in flight, the next one goes in as one ends; None: an open loop.
        timeout_seconds: a request that takes longer has failed.
        ended: told of each as it ends.
    """
    began = time.perf_counter()
    slots = asyncio.Semaphore(concurrency if concurrency is not None else len(requests) + 1)

    async def one(request: LoadRequest) -> Outcome:
        if concurrency is None:
            await asyncio.sleep(request.due_seconds - (time.perf_counter() - began))
        async with slots:
            now = time.perf_counter() - began
            due = request.due_seconds if concurrency is None else now
            outcome = Outcome(request, due)
            await _ask(endpoint, outcome, began, timeout_seconds)
        ended(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(request)) for request in requests]
    return tuple(task.result() for task in tasks)


async def _ask(endpoint: Endpoint, outcome: Outcome, began: float, timeout_seconds: float) -> None:
    def arrived(count: int) -> None:
        outcome.pieces.append((time.perf_counter() - began, count))

    try:
        async with asyncio.timeout(timeout_seconds):
            outcome.answer = await endpoint.ask(outcome.request, arrived)
    except EndpointError as error:
        outcome.error, outcome.message = error.kind, str(error)
    except TimeoutError:
        outcome.error = "timeout"
        outcome.message = f"no whole answer within {timeout_seconds:g} seconds"
    outcome.ended = time.perf_counter() - began
