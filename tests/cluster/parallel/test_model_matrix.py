"""Every served family, on one rank and on two, gives the tokens of transformers' `generate`.

Tiny random models in float32, with everything on that could go wrong: blocks, chunked prefill,
prefix hits and preemption. `docs/models.md` is made from this table.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4Config,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Starcoder2Config,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
QK_NORM = ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "cohere", "llama4_text")
VOCAB = 300
NEW_TOKENS = 24
CONTEXT = 256
ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    **ENDS,
}
PLAIN = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
OLD = {
    name: value for name, value in SIZES.items() if name not in ("head_dim", "num_key_value_heads")
}
OLD["num_attention_heads"] = 4
EXPERTS: dict[str, Any] = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILIES: dict[str, Callable[[], Any]] = {
    "Llama 2, 3": lambda: LlamaConfig(**SIZES),
    "Llama 4 (text)": lambda: Llama4TextConfig(
        **SIZES,
        intermediate_size_mlp=72,
        num_local_experts=4,
        interleave_moe_layer_step=2,
        attention_chunk_size=CONTEXT,
    ),
    "Qwen 2, 2.5": lambda: Qwen2Config(**{k: v for k, v in PLAIN.items() if k != "head_dim"}),
    "Qwen 3": lambda: Qwen3Config(**SIZES),
    "Mistral": lambda: MistralConfig(**SIZES, sliding_window=24),
    "Mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=5, num_experts_per_tok=2),
    "Qwen 3 MoE": lambda: Qwen3MoeConfig(**SIZES, **EXPERTS),
    "Gemma 2": lambda: Gemma2Config(
        **SIZES, sliding_window=24, attn_logit_softcapping=3.0, layer_types=SLIDING
    ),
    "Gemma 3": lambda: Gemma3TextConfig(**SIZES, sliding_window=24, layer_types=SLIDING),
    "Phi": lambda: PhiConfig(**{k: v for k, v in PLAIN.items() if k != "head_dim"}),
    "Phi 3, 4": lambda: Phi3Config(**{k: v for k, v in PLAIN.items() if k != "head_dim"}),
    "Granite": lambda: GraniteConfig(**PLAIN, logits_scaling=2.0, attention_multiplier=0.3),
    "OLMo 2": lambda: Olmo2Config(**{k: v for k, v in PLAIN.items() if k != "head_dim"}),
    "GPT-NeoX": lambda: GPTNeoXConfig(**OLD),
    "OPT": lambda: OPTConfig(**OLD, ffn_dim=104, word_embed_proj_dim=96),
    "GPT-2": lambda: GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=96, n_layer=3, n_head=4, **ENDS
    ),
    "StarCoder 2": lambda: Starcoder2Config(
        **{k: v for k, v in PLAIN.items() if k != "head_dim"}, sliding_window=24
    ),
    "Cohere": lambda: CohereConfig(
        **{k: v for k, v in PLAIN.items() if k != "head_dim"}, use_qk_norm=True
    ),
    "GLM 4": lambda: Glm4Config(**SIZES),
    "gpt-oss": lambda: GptOssConfig(
        **SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=24, layer_types=SLIDING
    ),
}

Serve = Callable[..., Any]


def _prompts() -> list[list[int]]:
    """One long prompt, two that share its first blocks, two that grow out of theirs."""
    long = [(17 * n + 3) % VOCAB for n in range(90)]
    short = [[start + 31 * n for n in range(9)] for start in (7, 8)]
    return [long, [*long[:50], 7, 8, 9], [*long[:34], 11], *short]


def _generate(directory: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        output = model.generate(
            torch.tensor([list(prompt)]), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_equal_transformers(
    serve: Serve, save_model: Callable[[Any], Path], family: str
) -> None:
    directory = save_model(FAMILIES[family]())
    prompts = _prompts()
    expected = _generate(directory, prompts)
    for ranks in (1, 2):
        served = serve(
            directory,
            prompts,
            ranks=ranks,
            new_tokens=NEW_TOKENS,
            num_blocks=8,
            max_step_tokens=24,
            first_alone=True,
        )
        assert served.tokens == expected, f"{ranks} ranks"
        assert served.ledger.preemptions > 0
        assert served.ledger.prefix_hit_tokens > 0


def _row(family: str, config: Any) -> str:
    """One line of the page: what a tiny model of the family has and the test above runs."""
    of_attention = {
        "window": getattr(config, "sliding_window", None),
        "soft cap": getattr(config, "attn_logit_softcapping", None),
        "sinks": config.model_type == "gpt_oss",
        "norm of queries and keys": config.model_type in QK_NORM,
    }
    experts = any(getattr(config, field, None) for field in ("num_experts", "num_local_experts"))
    has = ", ".join(name for name, value in of_attention.items() if value) or "plain"
    family_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    architecture = family_class.__name__
    return f"| {family} | `{architecture}` | {has} | {'yes' if experts else ''} |"


def test_the_page_of_models_is_made_from_this_table() -> None:
    rows = "\n".join(_row(family, make()) for family, make in FAMILIES.items())
    begin, end = "<!-- table -->\n", "<!-- end -->\n"
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    old, after = rest.split(end)
    new = f"| family | class | attention | experts |\n|---|---|---|---|\n{rows}\n"
    if os.environ.get("BLOCKYARD_WRITE_DOCS"):
        PAGE.write_text(before + begin + new + end + after, encoding="utf-8")
    else:
        assert old == new, "run this test with BLOCKYARD_WRITE_DOCS=1 and commit docs/models.md"
