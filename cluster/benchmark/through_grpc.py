"""Serves a workload through a running server, as clients do: every request one gRPC stream.

Units: seconds, tokens.
"""

import asyncio
import time

from blockyard.cluster.benchmark.end_to_end import Pass
from blockyard.cluster.benchmark.local_server import RequestTimes
from blockyard.cluster.benchmark.workloads import Workload, WorkloadRequest
from blockyard.cluster.client import GenerationClient, Settings, build_request

__all__ = ["measure_through_grpc"]

_WARM_UP_TOKENS = 8


async def measure_through_grpc(
    address: str, workload: Workload, passes: int, vocab_size: int
) -> list[Pass]:
    """The workload's passes, a short one first that is not counted.

    Raises:
        ServerError: a request failed.
        RuntimeError: fewer tokens came than were asked for.
    """
    async with GenerationClient(address) as client:
        first = [
            WorkloadRequest(request.prompt, min(request.max_tokens, _WARM_UP_TOKENS))
            for request in workload.shifted(900, vocab_size).requests[:4]
        ]
        await _serve(client, tuple(first), workload.concurrency)
        measured = []
        for number in range(passes):
            for repeat in range(workload.repeats):
                shifted = workload.shifted(10 * number + repeat, vocab_size)
                began = time.perf_counter()
                times = await _serve(client, shifted.requests, workload.concurrency)
                measured.append(Pass(time.perf_counter() - began, times))
    return measured


async def _serve(
    client: GenerationClient, requests: tuple[WorkloadRequest, ...], concurrency: int
) -> tuple[RequestTimes, ...]:
    slots = asyncio.Semaphore(concurrency)

    async def one(request: WorkloadRequest) -> RequestTimes:
        async with slots:
            settings = Settings(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=True)
            message = build_request(token_ids=request.prompt, settings=settings)
            times = RequestTimes(time.perf_counter())
            async for chunk in client.stream(message):
                now = time.perf_counter()
                times.tokens.extend([now] * len(chunk.token_ids))
            if len(times.tokens) != request.max_tokens:
                raise RuntimeError(f"{len(times.tokens)} of {request.max_tokens} tokens came")
            return times

    return tuple(await asyncio.gather(*map(one, requests)))
