"""Requests of several adapters and the base model in one batch, against merged weights."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from blockyard.scheduler.plan import Admission, BlockGrant, Fork, StepPlan
from blockyard.scheduler.sampling import SamplingParams
from blockyard.workers.adapter_description import (
    AdapterDescription,
    AdapterRefused,
    describe_adapter,
)
from blockyard.workers.config import WorkerConfig
from blockyard.workers.worker import ModelWorker

Make = Callable[..., Any]
GREEDY = SamplingParams(temperature=0.0)
PROMPTS = [[3, 5, 7, 11, 13], [3, 5, 7, 11, 13], [9, 8, 7, 6], [40, 41, 42, 43, 44, 45]]
NEW_TOKENS = 6

SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SHAPE)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=256,
            initializer_range=0.3, eos_token_id=None, bos_token_id=None,
        )
    ),
}  # fmt: skip


def build(family: str) -> Any:
    torch.manual_seed(3)
    model = FAMILIES[family]()
    for name, parameter in model.named_parameters():
        if name.endswith("_proj.bias"):
            torch.nn.init.normal_(parameter)
    model.generation_config.eos_token_id = None
    return model.train(False)


def start(folder: Path, **settings: Any) -> ModelWorker:
    config = WorkerConfig(
        str(folder),
        256,
        device="cpu",
        num_blocks=64,
        num_host_blocks=0,
        threads=1,
        **{"max_adapters": 3, **settings},
    )
    worker = ModelWorker(config)
    worker.load()
    worker.allocate(64)
    return worker


class Driver:
    """Runs plans of requests that each have a block, and keeps their tokens."""

    def __init__(self, worker: ModelWorker) -> None:
        self.worker = worker
        self.step = 0
        self.tokens: dict[int, list[int]] = {}
        self.prompts: dict[int, int] = {}

    def admit(self, prompts: Sequence[Sequence[int]], adapters: Sequence[str]) -> list[int]:
        """Prefill some requests in one step; their handles."""
        first = len(self.tokens) + 1
        handles = [*range(first, first + len(prompts))]
        for handle, prompt in zip(handles, prompts, strict=True):
            self.tokens[handle] = list(prompt)
            self.prompts[handle] = len(prompt)
        self.run(
            handles,
            admitted=tuple(
                Admission(handle, GREEDY, len(prompt), (), adapter)
                for handle, prompt, adapter in zip(handles, prompts, adapters, strict=True)
            ),
            grants=tuple(BlockGrant(handle, (handle,)) for handle in handles),
        )
        return handles

    def run(
        self,
        handles: Sequence[int],
        admitted: tuple[Admission, ...] = (),
        grants: tuple[BlockGrant, ...] = (),
        forks: tuple[Fork, ...] = (),
    ) -> None:
        self.step += 1
        new = {admission.handle for admission in admitted}
        starts = [0 if h in new else len(self.tokens[h]) - 1 for h in handles]
        computed = [tuple(self.tokens[h][s:]) for h, s in zip(handles, starts, strict=True)]
        plan = StepPlan(
            self.step, (), admitted, grants, tuple(handles), tuple(starts),
            tuple(map(len, computed)), (True,) * len(handles), sum(computed, ()), forks=forks,
        )  # fmt: skip
        for fork in forks:
            self.tokens[fork.handle] = list(self.tokens[fork.parent])
            self.prompts[fork.handle] = self.prompts[fork.parent]
        result = self.worker.execute(plan)
        named = (*handles, *(fork.handle for fork in forks))
        for handle, token in zip(named, result.token_ids, strict=True):
            self.tokens[handle].append(token)

    def output(self, handle: int) -> list[int]:
        return self.tokens[handle][self.prompts[handle] :]


def reference(model: Any, prompt: Sequence[int], count: int = NEW_TOKENS) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                         do_sample=False)  # fmt: skip
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


def load(worker: ModelWorker, folder: Path, name: str) -> AdapterDescription:
    adapter = describe_adapter(folder, name, 16)
    worker.load_adapter(adapter)
    return adapter


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_three_adapters_and_the_base_in_one_batch(
    family: str, backend: str, tmp_path: Path, make_adapter: Make
) -> None:
    model = build(family)
    model.save_pretrained(tmp_path / "model")
    worker = start(tmp_path / "model", backend=backend)
    kinds = {"gpt2": ("c_attn", "c_proj")}.get(family, ("q_proj", "v_proj", "qkv_proj"))
    merged = [
        make_adapter(tmp_path / "a", model, 1, rank=4),
        make_adapter(tmp_path / "b", model, 2, rank=16, config={"use_rslora": True}),
        make_adapter(tmp_path / "c", model, 3, rank=1, targets=kinds),
    ]
    ids = [load(worker, tmp_path / name, name).adapter_id for name in "abc"]
    driver = Driver(worker)
    handles = driver.admit(PROMPTS, ["", *ids])
    for _ in range(NEW_TOKENS - 1):
        driver.run(handles)
    wanted = [reference(each, p) for each, p in zip([model, *merged], PROMPTS, strict=True)]
    assert [driver.output(handle) for handle in handles] == wanted
    # Otherwise nothing is shown.
    assert len({tuple(reference(each, PROMPTS[0])) for each in [model, *merged]}) == 4


def test_steps_with_adapters_stay_on_native_layers(
    tmp_path: Path, make_adapter: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "model")
    worker = start(tmp_path / "model")
    merged = make_adapter(tmp_path / "a", model, 1)
    adapter = load(worker, tmp_path / "a", "a")

    def never(*arguments: Any) -> torch.Tensor:
        raise AssertionError("a step has left the native layers")

    monkeypatch.setattr(worker._loaded(), "_run_modules", never)
    driver = Driver(worker)
    base, adapted = driver.admit(PROMPTS[:2], ["", adapter.adapter_id])
    driver.run([base])
    driver.run([base, adapted])
    driver.run([adapted])
    assert driver.output(base) == reference(model, PROMPTS[0], 3)
    assert driver.output(adapted) == reference(merged, PROMPTS[1], 3)


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_an_adapter_that_adds_nothing_changes_nothing_of_weights_in_fewer_bits(
    weights: str, tmp_path: Path, make_adapter: Make
) -> None:
    model = build("tied")
    model.save_pretrained(tmp_path / "model")
    worker = start(tmp_path / "model", weights=weights)

    def nothing(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if "lora_B" in name:
                tensors[name].zero_()

    make_adapter(tmp_path / "a", model, 1, alter=nothing)
    adapter = load(worker, tmp_path / "a", "a")
    plain, adapted = Driver(worker), Driver(start(tmp_path / "model", weights=weights))
    load(adapted.worker, tmp_path / "a", "a")
    first, second = (
        plain.admit(PROMPTS, [""] * 4),
        adapted.admit(PROMPTS, [adapter.adapter_id] * 4),
    )
    for _ in range(NEW_TOKENS):
        plain.run(first)
        adapted.run(second)
    assert [plain.output(h) for h in first] == [adapted.output(h) for h in second]


def test_a_fork_goes_on_with_its_parents_adapter(tmp_path: Path, make_adapter: Make) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "model")
    worker = start(tmp_path / "model")
    merged = make_adapter(tmp_path / "a", model, 1)
    adapter = load(worker, tmp_path / "a", "a")
    driver = Driver(worker)
    (parent,) = driver.admit(PROMPTS[:1], [adapter.adapter_id])
    driver.run([parent], forks=(Fork(parent, 50, GREEDY, len(PROMPTS[0])),))
    # Both write their next tokens, which are equal, to the block that they share.
    driver.run([parent, 50])
    assert driver.output(parent) == driver.output(50) == reference(merged, PROMPTS[0], 3)


def test_a_slot_that_was_given_up_holds_nothing_of_before(
    tmp_path: Path, make_adapter: Make
) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "model")
    worker = start(tmp_path / "model", max_adapters=1)
    make_adapter(tmp_path / "a", model, 1, rank=8)
    merged = make_adapter(tmp_path / "b", model, 2, rank=2, targets=("o_proj", "up_proj"))
    old = load(worker, tmp_path / "a", "a")
    with pytest.raises(AdapterRefused, match="1 adapters are loaded, this server takes 1"):
        load(worker, tmp_path / "b", "b")
    worker.load_adapter(old)  # it is there already
    worker.drop_adapter(old.adapter_id)
    worker.drop_adapter(old.adapter_id)
    new = load(worker, tmp_path / "b", "b")
    driver = Driver(worker)
    (handle,) = driver.admit(PROMPTS[:1], [new.adapter_id])
    for _ in range(NEW_TOKENS - 1):
        driver.run([handle])
    assert driver.output(handle) == reference(merged, PROMPTS[0])
    with pytest.raises(KeyError):
        driver.admit(PROMPTS[:1], [old.adapter_id])


def test_room_for_adapters_is_left_beside_blocks(tmp_path: Path) -> None:
    """What the KV pool gets by default is less by what all slots take."""
    model = build("llama")
    model.save_pretrained(tmp_path / "model")
    worker = start(tmp_path / "model")
    columns = sum(m.in_features + m.out_features for n, m in model.named_modules()
                  if isinstance(m, torch.nn.Linear) and "layers" in n)  # fmt: skip
    assert worker._bank().most_bytes == columns * 3 * 16 * 4
    assert start(tmp_path / "model", max_adapters=0)._bank().most_bytes == 0
