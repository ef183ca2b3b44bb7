"""Several answers to one prompt as one request, from the dispatcher to the workers and back."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestSpec
from blockyard.workers.fake import witness_generate

VOCAB = 251
Spec = Callable[..., RequestSpec]


def oracle(spec: RequestSpec, choice: int) -> list[int]:
    assert spec.sampling.max_tokens is not None
    return witness_generate(
        spec.prompt_token_ids, spec.sampling.max_tokens, VOCAB, (), choice=choice
    )


async def by_choice(stream: Any, num_choices: int) -> list[list[int]]:
    """Tokens of each choice; each must end once, with its own last update."""
    tokens: list[list[int]] = [[] for _ in range(num_choices)]
    ended: list[int] = []
    async for update in stream:
        assert update.choice not in ended
        tokens[update.choice].extend(update.token_ids)
        if update.finish_reason is not None:
            assert update.finish_reason is FinishReason.LENGTH
            ended.append(update.choice)
    assert sorted(ended) == list(range(num_choices))
    return tokens


async def test_choices_share_one_prefill_and_equal_the_oracle(stack: Any, spec: Spec) -> None:
    group = await stack.add_group(ranks=2)
    one = replace(spec("a", tuple(range(1, 30)), 20), num_choices=4)
    answers = await by_choice(await stack.dispatcher.submit("witness", one), 4)
    assert answers == [oracle(one, choice) for choice in range(4)]
    await stack.until(stack.idle)
    ledger = group.server.ledger()
    assert ledger.prompt_tokens == 29, "the prompt was computed once"
    assert ledger.copied_blocks == 3, "its last block was copied by all but one"
    # 3 steps of chunks at the most, then one for each token: they go in step.
    assert ledger.step <= 3 + 20


async def test_choices_survive_preemption(stack: Any, spec: Spec) -> None:
    group = await stack.add_group(num_blocks=30)
    chance = random.Random(3)

    async def run(number: int) -> None:
        prompt = tuple(chance.randrange(VOCAB) for _ in range(chance.randrange(1, 30)))
        one = replace(spec(f"r{number}", prompt, 20), num_choices=1 + number % 4)
        answers = await by_choice(await stack.dispatcher.submit("witness", one), one.num_choices)
        assert answers == [oracle(one, choice) for choice in range(one.num_choices)]

    await asyncio.gather(*(run(number) for number in range(16)))
    await stack.until(stack.idle)
    assert group.server.ledger().preemptions > 0


async def test_one_choice_is_called_off_and_the_others_go_on(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    one = replace(spec("a", (5, 6, 7), 60), num_choices=3)
    stream = await stack.dispatcher.submit("witness", one)
    tokens: list[list[int]] = [[], [], []]
    async for update in stream:
        assert update.choice != 1 or len(tokens[1]) < 5, "nothing is told of who was called off"
        tokens[update.choice].extend(update.token_ids)
        if update.choice == 1 and len(tokens[1]) >= 5:
            await stream.abort(1)
            await stream.abort(1)
    assert tokens[0] == oracle(one, 0) and tokens[2] == oracle(one, 2)
    await stack.until(stack.idle)
    assert group.server.ledger().step >= 60


async def test_the_request_ends_when_its_last_choice_is_called_off(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    group.workers[0].gate.clear()
    one = replace(spec("a", (5, 6, 7), 60), num_choices=3)
    stream = await stack.dispatcher.submit("witness", one)
    for choice in range(3):
        assert group.server.engine.num_requests == 1
        await stream.abort(choice)
        await asyncio.sleep(0)
    await stack.until(lambda: group.server.engine.num_requests == 0)
    assert [update async for update in stream] == []
    again = await stack.dispatcher.submit("witness", one)  # its id is free
    group.workers[0].gate.set()
    assert await by_choice(again, 3) == [oracle(one, choice) for choice in range(3)]
    await stack.until(stack.idle)


async def test_an_ingress_that_goes_frees_every_choice(stack: Any, spec: Spec) -> None:
    group = await stack.add_group()
    for number in range(4):
        one = replace(spec(f"r{number}", (number + 1,) * 9, 100), num_choices=4)
        await stack.dispatcher.submit("witness", one)
    await stack.until(lambda: group.server.ledger().requests.running >= 8)
    await stack.dispatcher.close()
    await stack.until(stack.idle)


async def test_a_slow_reader_holds_one_update_a_choice(stack: Any, spec: Spec) -> None:
    await stack.add_group()
    one = replace(spec("slow", (3, 1, 4), 80), num_choices=3)
    stream = await stack.dispatcher.submit("witness", one)
    await stack.until(stack.idle)  # nobody read while it ran
    updates = [update async for update in stream]
    # One held, and at most one more that was still on its way when the reader began.
    assert len(updates) <= 2 * 3
    found: dict[int, list[int]] = {choice: [] for choice in range(3)}
    for update in updates:
        found[update.choice].extend(update.token_ids)
    assert found == {choice: oracle(one, choice) for choice in range(3)}


async def test_more_choices_than_run_at_once_are_refused(stack: Any, spec: Spec) -> None:
    await stack.add_group(max_running=3)
    with pytest.raises(RequestRefused) as refused:
        await stack.dispatcher.submit("witness", replace(spec("a", (1,), 5), num_choices=4))
    assert (refused.value.code, refused.value.field) == (RefusalCode.INVALID, "n")
