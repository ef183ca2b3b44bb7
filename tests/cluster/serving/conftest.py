"""Starts `blockyard serve` as a user does, in a process of its own, and proves that it ends clean.

Each module has one server; what its output says is shown when it does not start or stop as it must.
"""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from blockyard.cluster.client import GenerationClient, Settings, build_request
from blockyard.protos import cluster_pb2
from blockyard.protos import generation_pb2 as pb
from blockyard.workers.fake import witness_generate
from blockyard.workers.witness_files import WITNESS_CONTEXT_TOKENS

BLOCKYARD = Path(sys.executable).parent / "blockyard"
START_SECONDS = 240.0
STOP_SECONDS = 90.0
WITNESS_VOCAB = 259
"""Bytes and three control tokens."""


@dataclass
class Server:
    """A running `blockyard serve`."""

    process: subprocess.Popen[bytes]
    output: Path
    address: str
    proxy_address: str
    ended: bool = False
    family: list[psutil.Process] = field(default_factory=list)

    def client(self, timeout_seconds: float = 100.0) -> GenerationClient:
        return GenerationClient(self.address, timeout_seconds)

    def wait_started(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while "\nserving " not in self.said():
            assert self.process.poll() is None, f"it ended at its start:\n{self.said()}"
            assert time.monotonic() < deadline, f"it did not start:\n{self.said()}"
            time.sleep(0.1)

    def said(self) -> str:
        return "\n" + self.output.read_text(errors="replace")

    def find(self, name: str) -> list[psutil.Process]:
        """Its live processes of that name; Ray may add the method that runs, after a point."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            # A process that ends meanwhile has no command line any more.
            with contextlib.suppress(psutil.NoSuchProcess):
                title = "".join(process.cmdline()[:1])
                if title == name or title.startswith(f"{name}."):
                    found.append(process)
        return found

    def find_program(self, name: str) -> list[psutil.Process]:
        """Its live processes of a program that is not Python."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in family if process.name() == name]

    def terminate(self) -> None:
        """SIGTERM to the one process that the user started."""
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)

    def wait_ended(self) -> None:
        """It must exit with 0 and leave no process behind."""
        code = self.process.wait(timeout=STOP_SECONDS)
        self.ended = True
        _, left = psutil.wait_procs(self.family, timeout=20)
        assert code == 0, f"it exited with {code}:\n{self.said()}"
        assert not left, f"it left {[process.cmdline()[:1] for process in left]} behind"
        assert "Traceback" not in self.said(), self.said()

    def kill(self) -> None:
        """Whatever went wrong, take down what this server started, and nothing else."""
        family = set(self.family)
        if self.process.poll() is None:
            root = psutil.Process(self.process.pid)
            family |= {root, *root.children(recursive=True)}
        for process in family:
            if process.is_running():
                process.kill()
        psutil.wait_procs(list(family), timeout=20)
        self.process.wait(timeout=20)

    async def books(self, client: GenerationClient) -> list[Any]:
        """The books of every group, proved to add up."""
        response: cluster_pb2.LedgerResponse = await client.ledger()
        for group in response.groups:
            check_books(
                {
                    part: {
                        counted.name: getattr(getattr(group, part), counted.name)
                        for counted in getattr(group, part).DESCRIPTOR.fields
                    }
                    for part in ("blocks", "slots", "requests")
                },
                group.block_size,
            )
        return list(response.groups)

    async def until_clean(self, client: GenerationClient, seconds: float) -> None:
        """Wait until no request is live and every block is free or cached."""
        async with asyncio.timeout(seconds):
            while True:
                groups = await self.books(client)
                if groups and all(map(is_clean, groups)):
                    return
                await asyncio.sleep(0.05)

    async def command(self, *arguments: str) -> str:
        """What a `blockyard` command prints; it must succeed."""
        process = await asyncio.create_subprocess_exec(
            BLOCKYARD,
            *arguments,
            "--address",
            self.address,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, complaint = await process.communicate()
        assert process.returncode == 0, complaint.decode()
        return printed.decode()


def check_books(group: dict[str, dict[str, int]], block_size: int) -> None:
    """The two laws of the books."""
    blocks, slots = group["blocks"], group["slots"]
    states = [blocks[state] for state in ("free", "cached", "active", "fenced")]
    counts = [*states, *slots.values(), *group["requests"].values()]
    assert min(counts) >= 0, group
    assert sum(states) == blocks["total"] > 0, group
    assert slots["filled"] + slots["promised"] + slots["empty_tail"] == (
        blocks["active"] * block_size
    ), group


def is_clean(group: Any) -> bool:
    """Whether nothing runs, waits or holds a block."""
    blocks, requests = group.blocks, group.requests
    return blocks.free + blocks.cached == blocks.total and not (
        requests.running or requests.waiting or requests.parked
    )


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, proxied: bool = False) -> Iterator[Server]:
    """A server with these options, stopped by SIGTERM at the end unless it was already."""
    port, proxy_port = free_ports(2)
    command = [str(BLOCKYARD), "serve", "--port", str(port), "--device", "cpu", *arguments]
    if proxied:
        command += ["--serve-grpc-port", str(proxy_port)]
    output = folder / "output"
    with output.open("wb") as writer:
        process = subprocess.Popen(command, stdout=writer, stderr=writer)
    server = Server(process, output, f"127.0.0.1:{port}", f"127.0.0.1:{proxy_port}")
    try:
        server.wait_started()
        yield server
        if not server.ended:
            server.terminate()
            server.wait_ended()
    finally:
        server.kill()


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@dataclass(frozen=True)
class Answer:
    """A whole answer, streamed or not."""

    text: str
    tokens: list[int]
    finish_reason: int


async def stream(client: GenerationClient, request: pb.GenerateRequest) -> Answer:
    """All of a stream."""
    chunks = [chunk async for chunk in client.stream(request)]
    return Answer(
        "".join(chunk.text for chunk in chunks),
        [token for chunk in chunks for token in chunk.token_ids],
        chunks[-1].finish_reason,
    )


def make_request(
    prompt: str | Sequence[int], max_tokens: int, ignore_eos: bool = True
) -> pb.GenerateRequest:
    """A greedy request."""
    settings = Settings(max_tokens=max_tokens, temperature=0.0, ignore_eos=ignore_eos)
    if isinstance(prompt, str):
        return build_request(prompt=prompt, settings=settings)
    return build_request(token_ids=prompt, settings=settings)


def witness_answer(request: pb.GenerateRequest) -> list[int]:
    """The tokens that a server of the witness must answer with."""
    assert request.sampling.ignore_eos
    limit = request.sampling.max_tokens
    assert len(request.tokens.ids) + limit <= WITNESS_CONTEXT_TOKENS
    return witness_generate(request.tokens.ids, limit, WITNESS_VOCAB)


@pytest.fixture(scope="session")
def serve_with() -> Callable[..., Any]:
    """`serving`, for the fixture of a module."""
    return serving


@pytest.fixture(scope="session")
def ports() -> Callable[[int], list[int]]:
    """`free_ports`, for servers that are told theirs otherwise."""
    return free_ports


@pytest.fixture(scope="session")
def add_up() -> Callable[[dict[str, dict[str, int]], int], None]:
    return check_books


@pytest.fixture(scope="session")
def request_for() -> Callable[..., pb.GenerateRequest]:
    return make_request


@pytest.fixture(scope="session")
def answer_of() -> Callable[..., Any]:
    return stream


@pytest.fixture(scope="session")
def oracle() -> Callable[[pb.GenerateRequest], list[int]]:
    return witness_answer


@pytest.fixture
async def client(server: Server) -> AsyncIterator[GenerationClient]:
    async with server.client() as connected:
        yield connected
