"""Sleep, wake and other weights over gRPC and HTTP: who may, what is taken, what is told."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx2
import pytest

from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.request.admin import AdminDoor
from blockyard.cluster.request.api_keys import KeyRing, read_api_keys
from blockyard.cluster.states.model_state import STARTED, ModelState, Ordered
from blockyard.cluster.states.state_api import StateApi
from blockyard.cluster.states.weight_files import OutsideRoot, weights_under
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import cluster_pb2 as pb
from blockyard.scheduler.request import RefusalCode

ADMIN, TENANT = "an-admins-own-key", "k" * 16
CALLS = ("Sleep", "WakeUp", "UpdateWeights")
Tokenizers = dict[str, ModelTokenizer]


class Script:
    """Carries no order out, and tells of it."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, bool, str | None]] = []
        self.group_states = [STARTED, ModelState(3, False, "v2", "3-ab")]
        self.refusal: tuple[RefusalCode, str] | tuple[()] = ()

    async def order(self, model: str, asleep: bool, directory: str | None = None) -> Ordered:
        self.orders.append((model, asleep, directory))
        return Ordered(1, ModelState(4, asleep, "v2", "3-ab"), 2, *self.refusal)

    def groups(self) -> list[Any]:
        model = SimpleNamespace(name="small")
        return [SimpleNamespace(model=model, state=state) for state in self.group_states]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def states(dispatcher: Any, script: Script) -> Callable[..., StateApi]:
    return lambda *door: StateApi(dispatcher, script, script.groups, AdminDoor(*door))


@pytest.fixture
async def called(
    dispatcher: Any, tokenizers: Tokenizers, states: Callable[..., StateApi], tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Calls a method of a server that has keys."""
    (tmp_path / "keys").write_text(f"boss {ADMIN} admin\nblue {TENANT}\n")
    keys = KeyRing(read_api_keys(tmp_path / "keys"))
    front = GrpcFront(dispatcher, tokenizers, keys=keys, states=states(True, bool(keys)))
    port = await front.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def call(name: str, request: Any, key: str = ADMIN, answer: Any = None) -> Any:
            method = channel.unary_unary(
                f"/blockyard.v1.Cluster/{name}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=(answer or pb.ModelState).FromString,
            )
            return await method(request, metadata=(("authorization", f"Bearer {key}"),), timeout=60)

        yield call
    await front.stop(None)


@pytest.fixture
async def web(
    dispatcher: Any, tokenizers: Tokenizers, states: Callable[..., StateApi]
) -> AsyncIterator[Any]:
    front = HttpFront(dispatcher, tokenizers, states=states(True))
    port = await front.start("127.0.0.1", 0)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client
    await front.stop(None)


def _request(name: str) -> Any:
    extra = {"directory": "v2"} if name == "UpdateWeights" else {}
    return getattr(pb, f"{name}Request")(**extra)


@pytest.mark.parametrize("name", CALLS)
async def test_only_an_admin_key_opens_the_door(
    called: Callable[..., Awaitable[Any]], script: Script, name: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="is not an admin's") as refused:
        await called(name, _request(name), TENANT)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await called(name, _request(name), "nobody's key at all")
    assert unknown.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert script.orders == []
    told = await called(name, _request(name))
    assert told == pb.ModelState(
        model="small", sleeping=name == "Sleep", weight_version="3-ab", groups=2
    )
    directory = "v2" if name == "UpdateWeights" else None
    assert script.orders == [("small", name == "Sleep", directory)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("told", [True, False])
async def test_a_server_that_was_not_started_so_lets_nobody(
    dispatcher: Any,
    tokenizers: Tokenizers,
    states: Callable[..., StateApi],
    script: Script,
    name: str,
    told: bool,
) -> None:
    front = GrpcFront(dispatcher, tokenizers, states=states(False) if told else None)
    port = await front.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(
            f"/blockyard.v1.Cluster/{name}",
            request_serializer=type(_request(name)).SerializeToString,
            response_deserializer=pb.ModelState.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(_request(name), timeout=60)
    await front.stop(None)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert script.orders == []


async def test_anybody_may_know_what_a_model_is(
    called: Callable[..., Awaitable[Any]], script: Script, web: Any
) -> None:
    asked = ("GetModel", pb.GetModelRequest(), TENANT, pb.ModelResponse)
    model = await called(*asked)
    assert (model.sleeping, model.weight_version) == (False, "3-ab")
    assert (await web.get("/is_sleeping?model=small")).json() == {
        "model": "small",
        "is_sleeping": False,
        "weight_version": "3-ab",
        "groups": 2,
    }


@pytest.mark.parametrize("asleep", [0, 1, 2])
async def test_a_model_sleeps_when_all_of_its_groups_do(
    web: Any, script: Script, asleep: int
) -> None:
    script.group_states = [ModelState(3, number < asleep) for number in range(2)]
    assert (await web.get("/is_sleeping")).json()["is_sleeping"] is (asleep == 2)


async def test_the_routes_are_those_of_others(web: Any, script: Script) -> None:
    assert (await web.post("/sleep?level=2")).json()["is_sleeping"] is True
    assert (await web.post("/wake_up")).json()["is_sleeping"] is False
    body = {"model_path": "v2", "model": "small"}
    assert (await web.post("/update_weights_from_disk", json=body)).status_code == 200
    assert script.orders == [("small", True, None), ("small", False, None), ("small", False, "v2")]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/sleep?level=3", None, 400, "level"),
        ("/wake_up?tags=weights", None, 400, "tags"),
        ("/sleep?model=nope", None, 404, "model"),
        ("/update_weights_from_disk", {}, 400, "model_path"),
        ("/update_weights_from_disk", {"model_path": 7}, 400, "model_path"),
        ("/update_weights_from_disk", {"model_path": "x" * 5000}, 400, "model_path"),
        ("/update_weights_from_disk", {"model_path": "v", "load_format": "pt"}, 400, "load_format"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    web: Any, script: Script, path: str, body: Any, status: int, param: str
) -> None:
    refused = await web.post(path, json=body) if body is not None else await web.post(path)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    assert script.orders == []


async def test_why_an_order_was_not_carried_out_is_told(web: Any, script: Script) -> None:
    script.refusal = (RefusalCode.INVALID, "'v9' is not below the directory of weights")
    refused = await web.post("/update_weights_from_disk", json={"model_path": "v9"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "model_path"
    assert "'v9' is not below" in refused.json()["error"]["message"]
    script.refusal = (RefusalCode.UNAVAILABLE, "no group serves small at the moment")
    assert (await web.post("/sleep")).status_code == 503


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../other", "/etc", "a/../..", "out", "loop", "\0", "n" * 300]
)
def test_weights_are_loaded_from_below_the_root_alone(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (root / "out").symlink_to(tmp_path / "other")
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(OutsideRoot, match="not below the directory of weights") as refused:
        weights_under(root, name)
    assert str(tmp_path) not in str(refused.value)


def test_weights_below_the_root_are_found_by_either_name(tmp_path: Path) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "root")
    for root in (tmp_path / "root", tmp_path / "link"):
        for name in ("a", "./a/", str(tmp_path / "root" / "a"), "a/../a"):
            assert weights_under(root, name) == tmp_path / "root" / "a"
    with pytest.raises(OutsideRoot, match="there is no directory 'b'"):
        weights_under(tmp_path / "root", "b")
    with pytest.raises(OutsideRoot, match="--weights-root"):
        weights_under(None, "a")


HOST = "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"sec-fetch-mode": "cors"}, True),
        ({"origin": f"http://{HOST}"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://proxy.example"}, True),
        ({"host": "localhost:8000", "sec-fetch-site": "same-origin"}, True),
        ({"host": "model.example", "user-agent": "curl"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://127.0.0.1:3000"}, False),
        ({"origin": "http://127.0.0.1:3000", "sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        # A name of somebody else that was made to point here.
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, False),
        ({"host": "evil.example", "sec-fetch-site": "same-origin"}, False),
        # Such a page may send any key, where none is looked at.
        ({"host": "evil.example", "sec-fetch-site": "same-origin", "authorization": "x"}, False),
        ({"host": "[::1]:8000", "origin": "http://[::1]:8000"}, True),
        ({"host": "[::1", "origin": "http://[::1"}, False),
        ({"origin": "http://["}, False),
        ({"origin": "http://evil.example", "authorization": "Bearer whatever"}, True),
    ],
)
async def test_no_web_page_changes_what_is_served(
    web: Any, script: Script, headers: dict[str, str], passes: bool
) -> None:
    told = {"host": HOST, "content-type": "text/plain"} | headers
    answer = await web.post("/sleep", content='{"model": "small"}', headers=told)
    if passes:
        assert answer.status_code == 200 and len(script.orders) == 1
    else:
        assert answer.status_code == 403 and script.orders == []
        assert answer.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/requests/x", "/tokenize"])
async def test_nor_does_one_begin_or_end_requests(web: Any, path: str) -> None:
    how = "DELETE" if "requests" in path else "POST"
    foreign = await web.request(how, path, headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403
    own = {"host": "us.example", "origin": "http://us.example"}
    assert (await web.request(how, path, headers=own)).status_code in (400, 404, 503)
    read = await web.get("/v1/models", headers={"origin": "http://evil.example"})
    assert read.status_code == 200 and "access-control-allow-origin" not in read.headers
