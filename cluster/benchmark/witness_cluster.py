"""A deployment of the witness in processes of its own, for benchmarks that break it.

The witness's tokens are known beforehand, so whatever comes back wrong is noticed. Units: seconds.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from blockyard.cluster.client import GenerationClient, ServerError, Settings, build_request
from blockyard.cluster.commands.start import free_port
from blockyard.workers.fake import witness_generate

__all__ = ["Readers", "groups_of", "witness_cluster"]

START_SECONDS = 120.0
STOP_SECONDS = 90.0
_VOCABULARY = 259
_PROMPTS = 16


@contextlib.contextmanager
def witness_cluster(*arguments: str) -> Iterator[str]:
    """`blockyard serve --model witness` with more arguments; the address for clients.

    Raises:
        RuntimeError: it did not come up; the message has what it said.
    """
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "blockyard", "serve", "--model", "witness", "--device", "cpu"]
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "said")
        with said.open("wb") as writer:
            process = subprocess.Popen(
                [*command, "--port", address.rpartition(":")[2], *arguments],
                stdout=writer,
                stderr=writer,
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while "serving witness" not in said.read_text(errors="replace"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no cluster came up: {said.read_text(errors='replace')}")
                time.sleep(0.1)
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


class Readers:
    """Clients that ask for one stream after the other, and compare every token.

    Attributes:
        finished: streams that ended whole and right.
        lost: streams that ended with an error.
        changed: streams with other tokens than they must have.
        failures: the words of each lost one.
    """

    def __init__(self, client: GenerationClient, count: int, num_tokens: int) -> None:
        self.finished = self.lost = self.changed = 0
        self.failures: Counter[str] = Counter()
        self._client = client
        self._num_tokens = num_tokens
        self._wanted = True
        self._expected: dict[int, list[int]] = {}
        self._readers = [asyncio.create_task(self._read(number)) for number in range(count)]

    async def stop(self) -> None:
        """Ask for no more; returns when all that was asked for has ended."""
        self._wanted = False
        await asyncio.gather(*self._readers)

    async def _read(self, number: int) -> None:
        while self._wanted:
            prompt = number % _PROMPTS
            number += 1
            tokens: list[int] = []
            settings = Settings(max_tokens=self._num_tokens, temperature=0.0, ignore_eos=True)
            request = build_request(token_ids=[prompt, 3, 5], settings=settings)
            try:
                async for chunk in self._client.stream(request):
                    tokens.extend(chunk.token_ids)
            except ServerError as error:
                self.lost += 1
                self.failures[str(error)] += 1
                continue
            if tokens == self._tokens_of(prompt):
                self.finished += 1
            else:
                self.changed += 1

    def _tokens_of(self, prompt: int) -> list[int]:
        if prompt not in self._expected:
            self._expected[prompt] = witness_generate((prompt, 3, 5), self._num_tokens, _VOCABULARY)
        return self._expected[prompt]


async def groups_of(client: GenerationClient) -> list[str]:
    """Ids of the groups that answer now."""
    return sorted(group.group_id for group in (await client.ledger()).groups)
