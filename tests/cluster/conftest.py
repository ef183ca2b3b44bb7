"""A small byte-level tokenizer, and a dispatcher that plays a script instead of an engine."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.dispatch import Dispatcher, GroupReport, TokenStream
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.request.chat_template import ChatTemplate
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.scheduler.ledger import BlockCounts, GroupLedger, RequestCounts, SlotCounts
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate, Timings
from blockyard.workers.catalog import default_cache_dir
from blockyard.workers.description import ModelDescription

CHAT_TEMPLATE = """
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('a system message must come first') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

CORPUS = ["the quick brown fox jumps over the lazy dog", "hello hello world, how are you today?"]


@dataclass
class ScriptedStream:
    """Plays a script for each choice, in turns; `aborted` is set when nothing is wanted any more.

    `aborts` counts calls for the whole request, `choice_aborts` holds the others.
    """

    request_id: str
    scripts: Sequence[Sequence[Any]]
    aborts: int = 0
    choice_aborts: list[int] = field(default_factory=list)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.playing = {choice: iter(script) for choice, script in enumerate(self.scripts)}

    @property
    def ended(self) -> bool:
        """Whether it has played to the end."""
        return not self.playing

    async def __aiter__(self) -> AsyncIterator[RequestUpdate]:
        while self.playing and not self.aborted.is_set():
            hanging = True
            for choice, script in list(self.playing.items()):
                if choice not in self.playing:
                    continue
                entry = next(script, None)
                if entry == "hang":
                    self.playing[choice] = itertools.repeat("hang")
                    continue
                hanging = False
                if entry is None:
                    del self.playing[choice]
                else:
                    yield self._update(choice, entry)
            if hanging:
                await self.aborted.wait()

    def _update(self, choice: int, entry: Any) -> RequestUpdate:
        if isinstance(entry, Exception):
            raise entry
        if isinstance(entry, RequestUpdate):
            return entry._replace(choice=choice)
        if isinstance(entry, FinishReason):
            return RequestUpdate(
                self.request_id,
                (),
                entry,
                cached_tokens=3,
                timings=Timings(0.1, 0.2, 0.3, 4),
                choice=choice,
            )
        return RequestUpdate(self.request_id, tuple(entry), choice=choice)

    async def abort(self, choice: int | None = None) -> None:
        if choice is not None:
            self.choice_aborts.append(choice)
            self.playing.pop(choice, None)
        else:
            self.aborts += 1
        if choice is None or not self.playing:
            self.aborted.set()


@dataclass
class ScriptedDispatcher:
    """Gives each choice of a submitted request its script, else that of the moment."""

    served: tuple[ModelDescription, ...]
    script: Sequence[Any] = ()
    scripts: dict[int, Sequence[Any]] = field(default_factory=dict)
    refusal: Exception | None = None
    is_ready: bool = True
    books: tuple[GroupReport, ...] = ()
    asked: list[tuple[bool, bool]] = field(default_factory=list)
    submitted: list[tuple[str, RequestSpec]] = field(default_factory=list)
    streams: list[ScriptedStream] = field(default_factory=list)

    def models(self) -> tuple[ModelDescription, ...]:
        return self.served

    async def submit(self, model: str, spec: RequestSpec) -> TokenStream:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append((model, spec))
        scripts = [self.scripts.get(choice, self.script) for choice in range(spec.num_choices)]
        self.streams.append(ScriptedStream(spec.request_id, scripts))
        return self.streams[-1]

    async def reports(self, audit: bool = False, memory: bool = False) -> tuple[GroupReport, ...]:
        self.asked.append((audit, memory))
        return self.books

    async def ready(self) -> bool:
        return self.is_ready


def _keeps_the_contract(dispatcher: ScriptedDispatcher) -> Dispatcher:
    return dispatcher


@pytest.fixture(scope="session")
def inner_tokenizer() -> Tokenizer:
    """Byte-level BPE; ids 0 to 2 are control tokens, the last is an added word with a text."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return inner


@pytest.fixture(scope="session")
def tokenizer(inner_tokenizer: Tokenizer) -> ModelTokenizer:
    return ModelTokenizer(
        Tokenizer.from_str(inner_tokenizer.to_str()), ChatTemplate(CHAT_TEMPLATE, {})
    )


@pytest.fixture
def spell(inner_tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """One token for each byte of a text, as an engine might produce them."""
    alphabet = ModelTokenizer(Tokenizer.from_str(inner_tokenizer.to_str()))
    of_byte = {
        bytes_of: token
        for token in range(alphabet.vocab_size)
        if len(bytes_of := alphabet._bytes_of_token(token)) == 1
    }
    return lambda text: [of_byte[bytes([byte])] for byte in text.encode()]


@pytest.fixture(scope="session")
def description(tokenizer: ModelTokenizer) -> ModelDescription:
    return ModelDescription(
        name="small",
        directory="/secret/place",
        architecture="LlamaForCausalLM",
        context_tokens=128,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=(0, 2),
    )


@pytest.fixture(scope="session")
def report() -> GroupReport:
    return GroupReport(
        group_id="group-0",
        model="small",
        device="cpu",
        dtype="float32",
        books=GroupBooks(
            GroupLedger(
                blocks=BlockCounts(total=10, free=5, cached=1, active=3, fenced=1),
                slots=SlotCounts(filled=40, promised=2, empty_tail=6),
                requests=RequestCounts(running=2, waiting=1, parked=0),
                block_size=16,
                step=77,
                preemptions=3,
                stalled_steps=0,
            )
        ),
    )


@pytest.fixture
def dispatcher(description: ModelDescription, report: GroupReport) -> ScriptedDispatcher:
    return ScriptedDispatcher((description,), books=(report,))


@pytest.fixture
def tokenizers(tokenizer: ModelTokenizer) -> dict[str, ModelTokenizer]:
    return {"small": tokenizer}


@pytest.fixture
def served_address(
    dispatcher: ScriptedDispatcher, tokenizers: dict[str, ModelTokenizer]
) -> Iterator[str]:
    """A server in a thread of its own, for clients that block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(timeout=20)

    async def start() -> tuple[GrpcFront, int]:
        front = GrpcFront(dispatcher, tokenizers)
        return front, await front.start("127.0.0.1:0")

    front, port = run(start())
    yield f"127.0.0.1:{port}"
    run(front.stop(None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model's files, which `make setup` fetches."""
    directory = default_cache_dir() / "smollm2-135m"
    if not (directory / "tokenizer.json").exists():
        pytest.skip("the default model is not here; `blockyard model fetch` gets it")
    return directory


@pytest.fixture
async def address(
    dispatcher: Dispatcher, tokenizers: dict[str, ModelTokenizer]
) -> AsyncIterator[str]:
    """Of a real server over loopback."""
    front = GrpcFront(dispatcher, tokenizers, health_watch_interval_seconds=0.01)
    port = await front.start("127.0.0.1:0")
    yield f"127.0.0.1:{port}"
    await front.stop(None)


@pytest.fixture
async def channel(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel
