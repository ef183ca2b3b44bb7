"""What a deployment is told reaches its ranks, and what cannot be started is refused."""

from typing import Any

import pytest

from blockyard.cluster.config import ServeConfig
from blockyard.cluster.tls import TlsFiles
from blockyard.scheduler.config import Speculation
from blockyard.workers.description import ModelDescription

MODEL = ModelDescription("witness", "/nowhere", "Witness", 256, 97, ())


def test_pool_sizes_reach_every_rank() -> None:
    config = ServeConfig(MODEL, num_blocks=64, num_host_blocks=32, block_size=8)
    worker = config.worker(0)
    assert (worker.num_blocks, worker.num_host_blocks, worker.block_size) == (64, 32, 8)
    assert ServeConfig(MODEL).worker(0).num_host_blocks is None
    assert ServeConfig(MODEL, num_host_blocks=0).worker(0).num_host_blocks == 0


def test_the_dtype_of_blocks_reaches_every_rank_and_must_be_known() -> None:
    assert ServeConfig(MODEL, kv_dtype="int8").worker(1).kv_dtype == "int8"
    with pytest.raises(ValueError, match=r"kv_dtype is 'int4'; known are auto, bfloat16"):
        ServeConfig(MODEL, kv_dtype="int4")


def test_two_steps_are_in_flight_unless_guesses_need_one_at_a_time_or_it_is_said() -> None:
    assert ServeConfig(MODEL).scheduler.pipeline_depth == 2
    guessing = ServeConfig(MODEL, speculate=Speculation.NGRAM)
    assert guessing.scheduler.pipeline_depth == 1
    assert ServeConfig(MODEL, pipeline_depth=1).scheduler.pipeline_depth == 1
    assert ServeConfig(MODEL, pipeline_depth=2).scheduler.pipeline_depth == 2
    with pytest.raises(ValueError, match=r"ngram with pipeline_depth 2; .* use a depth of 1"):
        ServeConfig(MODEL, pipeline_depth=2, speculate=Speculation.NGRAM)


def test_a_host_pool_is_never_negative() -> None:
    with pytest.raises(ValueError, match="num_host_blocks is -1; it must be 0"):
        ServeConfig(MODEL, num_host_blocks=-1)


@pytest.mark.parametrize(
    "guard", [{"api_keys_file": "/keys"}, {"tls": TlsFiles("/certificate", "/key")}]
)
def test_no_back_door_beside_keys_and_tls(guard: dict[str, Any]) -> None:
    """Ray Serve's proxy would serve the same calls to everybody."""
    assert ServeConfig(MODEL, **guard).serve_grpc_port is None
    with pytest.raises(ValueError, match=f"{next(iter(guard))} and serve_grpc_port do not go"):
        ServeConfig(MODEL, serve_grpc_port=9000, **guard)
