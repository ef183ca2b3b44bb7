"""The yard on a terminal."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

BLOCKYARD = Path(sys.executable).with_name("blockyard")


async def run(*arguments: str, **environment: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        BLOCKYARD,
        "top",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"COLUMNS": "100", "PATH": "", "LANG": "C.UTF-8", **environment},
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_it_shows_what_the_page_shows(make_yard: Callable[..., Awaitable[Any]]) -> None:
    yard = await make_yard(150)
    url = yard.url.removesuffix("/yard/")
    code, idle, err = await run("--once", "--url", url)
    assert code == 0, err
    assert "0 running, 0 waiting; 0 active + 0 cached + 0 fenced + 150 free = 150 blocks" in idle
    assert "nobody is served at the moment" in idle

    for number in range(9):
        await yard.submit(f"request-{number}", 40, 20)
    yard.worker.let(3)
    async with asyncio.timeout(60):
        while yard.dispatcher.engine.ledger().requests.running < 8:
            await asyncio.sleep(0.01)
        while yard.dispatcher.engine.ledger().blocks.active < 24:
            await asyncio.sleep(0.01)
    code, busy, err = await run("--url", url, "--group", "loc")
    assert code == 0, err
    assert "8 running, 1 waiting; 24 active" in busy
    rows = [line.split() for line in busy.splitlines() if line.startswith("request-")]
    assert rows[0][:2] == ["request-8", "waiting"] and rows[0][-1] == "places"
    assert [row[1] for row in rows[1:]] == ["running"] * 8
    drawn = "".join(line for line in busy.splitlines() if set(line) <= set("░▒▓█·/x") and line)
    # Three blocks for each: two of them full, the last a half.
    assert len(drawn) == 150
    assert (drawn.count("█"), drawn.count("·")) == (16, 126)


async def test_a_key_shows_what_is_its_tenants(
    make_yard: Callable[..., Awaitable[Any]], keys: Any
) -> None:
    yard = await make_yard(150, keys=keys.ring)
    url = yard.url.removesuffix("/yard/")
    await yard.submit("request-blue", 40, 20, tenant="blue")
    await yard.submit("request-red", 40, 20, tenant="red")
    yard.worker.let(3)
    async with asyncio.timeout(60):
        while yard.dispatcher.engine.ledger().requests.running < 2:
            await asyncio.sleep(0.01)
    code, _, err = await run("--once", "--url", url)
    assert code == 1
    assert err == (
        f"blockyard: the server at {url} asks for an API key; put one into BLOCKYARD_API_KEY\n"
    )
    code, shown, err = await run("--once", "--url", url, BLOCKYARD_API_KEY=keys.red)
    assert code == 0, err
    assert "request-red" in shown and "request-blue" not in shown
    assert "(another tenant's)" in shown
    code, shown, err = await run("--once", "--url", url, BLOCKYARD_API_KEY=keys.admin)
    assert code == 0, err
    assert "request-red" in shown and "request-blue" in shown
    code, _, err = await run("--once", "--url", url, BLOCKYARD_TLS_CA="/nowhere")
    assert code == 2 and "BLOCKYARD_TLS_CA" in err


async def test_a_wrong_place_is_told(make_yard: Callable[..., Awaitable[Any]]) -> None:
    code, _, err = await run("--once", "--url", "http://127.0.0.1:9")
    assert code == 1
    assert "no yard at http://127.0.0.1:9" in err and "blockyard serve --http-port" in err
    yard = await make_yard(8)
    url = yard.url.removesuffix("/yard/")
    code, _, err = await run("--once", "--url", url, "--group", "x")
    assert (code, err) == (1, "blockyard: 0 groups begin with x; there are local\n")
