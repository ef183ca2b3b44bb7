"""LoRA adapters of a model, from values to what the product is told."""

import json
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

WITNESS = {"name": "witness", "id": "witness", "groups": 1, "device": "cpu"}


def test_adapters_of_a_model_are_what_the_product_is_told(
    render: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 20, "lora_alpha": 8})
    )
    (tmp_path / "adapter_model.safetensors").write_bytes(b"1")
    own = {
        "adapters": {"support": str(tmp_path)},
        "maxAdapters": 3,
        "maxAdapterRank": 32,
        "adaptersRoot": "/models/adapters",
    }
    values = {
        "models": [WITNESS | own],
        "admin": {"enabled": True},
        "apiKeys": {"secret": "keys", "testKey": "test"},
    }
    args = render(values).serve_config["applications"][0]["args"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own modules
        service = import_module("blockyard.cluster.service")
    [served] = service.served_models(args)
    config = served.config
    assert [(each.name, each.rank) for each in config.adapters] == [("support", 20)]
    assert (config.adapter_slots, config.max_adapter_rank) == (3, 32)
    assert config.adapters_root == "/models/adapters"
    args["models"][0]["max_adapter_rank"] = 16
    with pytest.raises(ValueError, match=r"adapter support in .*: its rank is 20"):
        service.served_models(args)
    args["models"][0]["adapters"] = ["support"]
    with pytest.raises(ValueError, match="no mapping"):
        service.served_models(args)
