"""What a scraper and probes ask: the books of the moment, and nothing that can hang."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from blockyard.cluster.books import metrics_endpoint
from blockyard.cluster.books.metrics_endpoint import MetricsEndpoint


class TestEndpoint:
    @pytest.fixture
    async def endpoint(self, dispatcher: Any) -> AsyncIterator[MetricsEndpoint]:
        endpoint = MetricsEndpoint(dispatcher, report_seconds=0.5)
        self.port = await endpoint.start("127.0.0.1", 0)
        yield endpoint
        await endpoint.stop()

    async def ask(self, head: bytes) -> tuple[str, str]:
        """The status line and the body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head)
            async with asyncio.timeout(20):
                answer = (await reader.read()).decode()
        finally:
            writer.close()
            await writer.wait_closed()
        status, _, rest = answer.partition("\r\n")
        return status, rest.partition("\r\n\r\n")[2]

    async def test_a_scrape_gets_the_books_of_the_moment(
        self, endpoint: MetricsEndpoint, dispatcher: Any, report: Any
    ) -> None:
        status, body = await self.ask(b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        assert 'blockyard_steps_total{group="group-0"} 77.0' in body
        assert dispatcher.asked == [(False, True)]
        later = replace(report.books, ledger=replace(report.ledger, step=78))
        dispatcher.books = (replace(report, books=later),)
        _, body = await self.ask(
            b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
        )
        assert 'blockyard_steps_total{group="group-0"} 78.0' in body
        assert body.endswith("# EOF\n")

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"GET /metrics/x HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"\xff\xfe\r\n\r\n", "405 Method Not Allowed"),
        ],
    )
    async def test_anything_else_is_told_so(
        self, endpoint: MetricsEndpoint, head: bytes, status: str
    ) -> None:
        assert (await self.ask(head))[0] == f"HTTP/1.1 {status}"

    async def test_probes_learn_whether_traffic_is_welcome(
        self, endpoint: MetricsEndpoint, dispatcher: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        head = b"GET /ready HTTP/1.1\r\n\r\n"
        assert await self.ask(head) == ("HTTP/1.1 200 OK", "ready\n")
        dispatcher.is_ready = False
        assert (await self.ask(head))[0] == "HTTP/1.1 503 Service Unavailable"

        async def never() -> bool:
            await asyncio.Event().wait()
            return True

        dispatcher.ready = never
        monkeypatch.setattr(metrics_endpoint, "_READY_SECONDS", 0.05)
        assert (await self.ask(head))[0] == "HTTP/1.1 503 Service Unavailable"
        assert dispatcher.asked == []  # no books for somebody who does not read them

    async def test_head_has_no_body(self, endpoint: MetricsEndpoint) -> None:
        assert await self.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n") == ("HTTP/1.1 200 OK", "")

    async def test_books_that_do_not_come_fail_the_scrape_and_not_the_next(
        self, endpoint: MetricsEndpoint, dispatcher: Any, report: Any
    ) -> None:
        hanging = True

        async def reports(audit: bool = False, memory: bool = False) -> Any:
            if hanging:
                await asyncio.Event().wait()
            return (report,)

        dispatcher.reports = reports
        head = b"GET /metrics HTTP/1.1\r\n\r\n"
        # The second waits for the first, and no longer than its own time.
        answers = await asyncio.gather(self.ask(head), self.ask(head))
        assert [status for status, _ in answers] == ["HTTP/1.1 503 Service Unavailable"] * 2
        hanging = False
        assert (await self.ask(head))[0] == "HTTP/1.1 200 OK"

    async def test_a_failure_is_not_shown_to_the_scraper(
        self, endpoint: MetricsEndpoint, dispatcher: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def reports(audit: bool = False, memory: bool = False) -> Any:
            raise ValueError("/secret/place")

        dispatcher.reports = reports
        status, body = await self.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 500 Internal Server Error"
        assert "secret" not in body and "secret" in caplog.text

    async def test_silent_and_endless_callers_leave_room_for_a_scraper(
        self, endpoint: MetricsEndpoint
    ) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(15)]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"x" * 200_000)
        with contextlib.suppress(ConnectionResetError):  # cut off, one way or the other
            assert await reader.read() == b""
        status, _ = await self.ask(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        writer.transport.abort()
        for _, other in silent:
            other.transport.abort()
        await endpoint.stop()

    async def test_a_port_that_is_taken_is_an_error(
        self, endpoint: MetricsEndpoint, dispatcher: Any
    ) -> None:
        with pytest.raises(OSError, match="address already in use"):
            await MetricsEndpoint(dispatcher).start("127.0.0.1", self.port)
