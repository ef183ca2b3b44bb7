"""The policy that Serve is given: what it makes of the books, and that it never waits for them."""

import importlib
import threading
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from blockyard.cluster.autoscale import LOOK_SECONDS, STALE_SECONDS, ServedScaling
from blockyard.cluster.config import ServeConfig
from blockyard.scheduler.group_load import ClusterLoad, GroupLoad
from blockyard.scheduler.scaling import ScalingPolicy
from blockyard.workers.description import ModelDescription

POLICY = ScalingPolicy(min_groups=1, max_groups=4, quiet_seconds=20.0, idle_seconds=40.0)
IDLE = GroupLoad("g0", 1000, 1000, 16, 100, 0, 0, 1000.0, 0)
QUIET = ClusterLoad((IDLE,))
FULL = GroupLoad("g0", 1000, 100, 16, 100, 50, 0, 1000.0, 0)


@dataclass
class Serve:
    """What Serve's controller does, at a clock of the test's own."""

    policy: ScalingPolicy = POLICY
    now: float = 0.0
    target_num_replicas: int = 1
    load: ClusterLoad = QUIET

    def __post_init__(self) -> None:
        told = asdict(self.policy)
        self.scaling = ServedScaling("m", 100, told, lambda model, places: self.load, self.clock)
        self.scaling._watch = threading.current_thread()  # looks only when it is told to

    def clock(self) -> float:
        return self.now

    def tick(self, look: bool = True) -> int:
        self.now += LOOK_SECONDS
        if look:
            self.scaling.look()
        self.target_num_replicas, state = self.scaling(self)
        assert state == {}
        return self.target_num_replicas


def test_it_grows_when_blocks_run_short_and_counts_what_starts() -> None:
    serve = Serve(load=ClusterLoad((FULL,)))
    assert serve.tick() == 2
    assert [serve.tick() for _ in range(5)] == [2] * 5


def test_it_does_nothing_while_the_books_cannot_be_seen() -> None:
    serve = Serve(load=ClusterLoad((FULL,)))
    assert serve.tick(look=False) == 1
    assert serve.tick() == 2
    serve.load = ClusterLoad((FULL, FULL))
    serve.tick()
    serve.now += STALE_SECONDS
    before = serve.target_num_replicas
    assert serve.tick(look=False) == before


def test_a_group_that_is_going_is_not_called_back() -> None:
    serve = Serve(load=ClusterLoad((IDLE, IDLE)), target_num_replicas=2)
    while serve.tick() == 2:
        assert serve.now < 60
    # Serve has been told, and the group does not drain yet.
    assert [serve.tick() for _ in range(5)] == [1] * 5


def test_an_idle_model_goes_to_none_and_comes_back_for_one_request() -> None:
    serve = Serve(policy=ScalingPolicy(0, 2, quiet_seconds=5.0, idle_seconds=10.0))
    while serve.tick():
        assert serve.now < 60
    serve.load = ClusterLoad(())
    assert [serve.tick() for _ in range(5)] == [0] * 5
    serve.load = ClusterLoad((), 0, 1)
    assert serve.tick() == 1
    serve.load = ClusterLoad(())  # its client left; the group comes all the same
    assert [serve.tick() for _ in range(5)] == [1] * 5


def test_a_model_that_rests_keeps_its_groups_whatever_waits_and_however_long() -> None:
    policy = ScalingPolicy(0, 4, quiet_seconds=5.0, idle_seconds=10.0)
    serve = Serve(policy=policy, load=ClusterLoad((IDLE, IDLE), resting=True))
    serve.target_num_replicas = 2
    assert [serve.tick() for _ in range(100)] == [2] * 100
    serve.load = ClusterLoad((FULL, FULL), 0, 9, resting=True)
    assert [serve.tick() for _ in range(9)] == [2] * 9
    # It wakes up: its rest was no idleness.
    serve.load = ClusterLoad((IDLE, IDLE))
    assert serve.tick() == 2
    while serve.tick() == 2:
        assert serve.now < 120
    assert serve.now > 50 + 5


def test_the_books_are_asked_for_beside_the_controller() -> None:
    asked = threading.Event()
    answered = threading.Event()

    def ask(model: str, places: int) -> Any:
        asked.set()
        assert answered.wait(30)
        return ClusterLoad((FULL,))

    scaling = ServedScaling("m", 100, asdict(POLICY), ask)
    serve = Serve()
    assert scaling(serve) == (1, {})
    assert asked.wait(30)
    assert scaling(serve) == (1, {})  # and is not held up by an answer that does not come
    answered.set()


@pytest.fixture(scope="module")
def app() -> Any:
    with warnings.catch_warnings():
        # Ray Serve declares its schemas in a way that pydantic has deprecated.
        warnings.simplefilter("ignore")
        return importlib.import_module("blockyard.cluster.app")


def config(**told: Any) -> ServeConfig:
    return ServeConfig(ModelDescription("m", "/nowhere", "Witness", 64, 99, ()), **told)


def test_serve_is_given_the_policy_and_no_delays_of_its_own(app: Any) -> None:
    model = app.ServedModel(config(min_groups=0, max_groups=3, scale_idle_seconds=7.0), False)
    groups = app.build_app((model,))._bound_deployment.init_args[1]._bound_deployment
    told = groups._deployment_config.autoscaling_config
    assert (told.min_replicas, told.initial_replicas, told.max_replicas) == (0, 1, 3)
    assert told.upscale_delay_s == told.downscale_delay_s == told.downscale_to_zero_delay_s == 0
    made = told.policy.get_policy()(**told.policy.policy_kwargs)
    assert made._policy == ScalingPolicy(0, 3, idle_seconds=7.0)
    assert (made._model, made._places) == ("m", 256)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"min_groups": 1}, "min_groups is 1 without max_groups"),
        ({"min_groups": 3, "max_groups": 2}, "groups from 3 to 2"),
        ({"max_groups": 2, "scale_quiet_seconds": 0.0}, "quiet_seconds is 0.0"),
    ],
)
def test_bounds_that_contradict_themselves_are_refused(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**told)


def test_a_fixed_number_stays_fixed() -> None:
    assert config(num_groups=3).scaling is None
    assert config(num_groups=3).first_groups == 3
    assert config(min_groups=2, max_groups=5).first_groups == 2
