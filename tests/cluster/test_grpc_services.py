"""The cluster service, health and reflection, over a real loopback connection."""

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import cluster_pb2, cluster_pb2_grpc


@pytest.fixture
def cluster(channel: Any) -> Any:
    stub: Any = cluster_pb2_grpc.ClusterStub
    return stub(channel)


async def failure_of(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return caught.value


class TestCluster:
    async def test_the_ledger_is_the_groups_own(self, cluster: Any, report: Any) -> None:
        (group,) = (await cluster.GetLedger(cluster_pb2.GetLedgerRequest())).groups
        for part in ("blocks", "slots", "requests"):
            message, counts = getattr(group, part), getattr(report.ledger, part)
            for field in message.DESCRIPTOR.fields:
                assert getattr(message, field.name) == getattr(counts, field.name)
        assert (group.block_size, group.step, group.preemptions) == (16, 77, 3)
        assert (group.group_id, group.model) == ("group-0", "small")
        assert (group.device, group.dtype, group.stalled_steps) == ("cpu", "float32", 0)

    async def test_a_model_by_name_and_by_default(
        self, cluster: Any, dispatcher: Any, tokenizer: ModelTokenizer
    ) -> None:
        model = await cluster.GetModel(cluster_pb2.GetModelRequest())
        assert model == await cluster.GetModel(cluster_pb2.GetModelRequest(name="small"))
        assert (model.name, model.architecture) == ("small", "LlamaForCausalLM")
        assert (model.context_tokens, model.vocab_size) == (128, tokenizer.vocab_size)
        assert list(model.eos_token_ids) == [0, 2]
        assert (model.has_chat_template, model.block_size) == (True, 16)
        dispatcher.books = ()
        assert not (await cluster.GetModel(cluster_pb2.GetModelRequest())).HasField("block_size")

    async def test_an_unknown_model(self, cluster: Any) -> None:
        error = await failure_of(cluster.GetModel(cluster_pb2.GetModelRequest(name="nope")))
        assert error.code() is grpc.StatusCode.NOT_FOUND


class TestHealth:
    @staticmethod
    def check(channel: Any, service: str) -> Any:
        return channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest(service=service))

    @pytest.mark.parametrize("service", ["", "blockyard.v1.Generation", "blockyard.v1.Cluster"])
    async def test_it_tells_whether_traffic_is_welcome(
        self, channel: Any, dispatcher: Any, service: str
    ) -> None:
        states = health_pb2.HealthCheckResponse
        assert (await self.check(channel, service)).status == states.SERVING
        dispatcher.is_ready = False
        assert (await self.check(channel, service)).status == states.NOT_SERVING

    async def test_an_unknown_service(self, channel: Any) -> None:
        error = await failure_of(self.check(channel, "nope"))
        assert error.code() is grpc.StatusCode.NOT_FOUND

    async def test_a_dispatcher_that_fails_is_not_serving(
        self, channel: Any, dispatcher: Any
    ) -> None:
        async def ready() -> bool:
            raise OSError("gone")

        dispatcher.ready = ready
        answer = await self.check(channel, "")
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING

    @pytest.mark.parametrize("service", ["", "nope"])
    async def test_watching_tells_each_change_once(
        self, channel: Any, dispatcher: Any, service: str
    ) -> None:
        states = health_pb2.HealthCheckResponse
        call = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=states.FromString,
        )(health_pb2.HealthCheckRequest(service=service))
        if service == "nope":
            assert (await call.read()).status == states.SERVICE_UNKNOWN
        else:
            assert (await call.read()).status == states.SERVING
            dispatcher.is_ready = False
            assert (await call.read()).status == states.NOT_SERVING
        call.cancel()


class TestReflection:
    @pytest.mark.parametrize("version", ["v1", "v1alpha"])
    async def test_services_and_their_files_are_found(self, channel: Any, version: str) -> None:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(
            iter(
                [
                    reflection_pb2.ServerReflectionRequest(list_services=""),
                    reflection_pb2.ServerReflectionRequest(
                        file_containing_symbol="blockyard.v1.Generation"
                    ),
                ]
            )
        )
        names = {entry.name for entry in (await call.read()).list_services_response.service}
        assert {
            "blockyard.v1.Generation",
            "blockyard.v1.Cluster",
            "grpc.health.v1.Health",
        } <= names
        (file, *_) = (await call.read()).file_descriptor_response.file_descriptor_proto
        assert b"GenerateStream" in file


class TestListening:
    async def test_a_taken_port_is_told(
        self, address: str, dispatcher: Any, tokenizers: dict[str, ModelTokenizer]
    ) -> None:
        second = GrpcFront(dispatcher, tokenizers)
        with pytest.raises(OSError, match="is another server running there"):
            await second.start(address)
        await second.stop(None)
