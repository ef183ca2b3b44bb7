"""Drives llama.cpp's server over HTTP on the loopback address, streaming.

The server has as many slots as requests are in flight: with more it is slower.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import time

from measuring import Requests, Times, arguments, run_passes

__all__ = ["main"]

_START_SECONDS = 120


def main() -> None:
    """Start the server, measure, stop it."""
    parser = arguments(__doc__)
    parser.add_argument("--server", required=True, help="the llama-server program")
    options = parser.parse_args()
    for path in options.workload:
        workload = json.loads(path.read_text(encoding="utf-8"))
        longest = max(len(one["prompt"]) + one["max_tokens"] for one in workload["requests"])
        one_workload = argparse.Namespace(**{**vars(options), "workload": [path]})
        _measure(one_workload, workload["concurrency"], longest + 16)


def _measure(options: argparse.Namespace, slots: int, tokens_a_slot: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = str(options.threads)
    command = [
        *(options.server, "-m", options.model, "--host", "127.0.0.1", "--port", str(port)),
        *("-t", threads, "-tb", threads, "-np", str(slots), "-c", str(slots * tokens_a_slot)),
        *("-cb", "-ub", "512", "-b", "2048", "--threads-http", "1"),
    ]
    told = subprocess.run(
        [options.server, "--version"], capture_output=True, text=True, check=False
    )
    version = (told.stdout + told.stderr).partition("\n")[0][:60]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(server, port)

        def serve(requests: Requests, concurrency: int) -> Times:
            return asyncio.run(_serve(port, requests, concurrency))

        run_passes(options, "llama.cpp", {"version": version}, serve)
    finally:
        server.terminate()
        server.wait()


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"llama-server ended with {server.returncode}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                if b"200" in connection.recv(200):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("llama-server did not come up")


async def _serve(port: int, requests: Requests, concurrency: int) -> Times:
    slots = asyncio.Semaphore(concurrency)
    times: Times = {}

    async def one(request: dict[str, object]) -> None:
        async with slots:
            await _ask(port, request, times)

    await asyncio.gather(*map(one, requests))
    return times


async def _ask(port: int, request: dict[str, object], times: Times) -> None:
    body = json.dumps(
        {
            "prompt": request["prompt"],
            "n_predict": request["max_tokens"],
            "stream": True,
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": True,
            "return_tokens": True,
        }
    ).encode()
    stamps: list[float] = []
    times[int(str(request["id"]))] = (time.perf_counter(), stamps)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = (
        "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    while line := await reader.readline():
        if line.startswith(b"HTTP/1.1") and b"200" not in line:
            raise SystemExit(line.decode())
        if not line.startswith(b"data: "):
            continue
        now = time.perf_counter()
        news = json.loads(line[6:])
        if news.get("stop"):
            # It holds back tokens of half a character; they are counted when it ends.
            stamps += [now] * max(0, news.get("tokens_predicted", len(stamps)) - len(stamps))
            break
        stamps += [now] * len(news.get("tokens") or [])
    writer.close()


if __name__ == "__main__":
    main()
