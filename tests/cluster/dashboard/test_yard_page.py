"""The yard page in a browser: it follows what the scheduler does, and says it in words, too.

With `BLOCKYARD_SCREENSHOTS` set to a folder the pictures for the documents are written there.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow]

WAIT_MS = 60_000
COLOURS = """canvas => {
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) {
        const colour = [data[i], data[i + 1], data[i + 2]];
        const spread = Math.max(...colour) - Math.min(...colour);
        if (spread > 60) seen.add(colour.map((part) => part >> 4).join());
    }
    return seen.size;
}"""

TAGS = """place => Object.fromEntries([...document.querySelectorAll(`${place} .tag`)].map((tag) => [
    tag.parentElement.textContent.match(/request-\\d+/)[0], getComputedStyle(tag).backgroundColor,
]))"""


@pytest.fixture
async def page(browser: Any) -> AsyncIterator[Any]:
    """A page on which nothing may be complained about."""
    page = await browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def note(said: Any) -> None:
        # Reading the canvas back is this test's doing, not the page's.
        if said.type in ("error", "warning") and not said.text.startswith("Canvas2D: Multiple"):
            complaints.append(said.text)

    page.on("console", note)
    yield page
    assert complaints == []
    await page.close()


async def says(page: Any, place: str, words: str) -> None:
    """Wait until a part of the page has these words."""
    await page.locator(place).filter(has_text=words).first.wait_for(timeout=WAIT_MS)


async def figure(page: Any, name: str, value: str) -> None:
    found = page.locator(".figure", has=page.get_by_text(name, exact=True))
    await found.filter(has=page.locator("b", has_text=value)).wait_for(timeout=WAIT_MS)


async def tags(page: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Colours of requests by their names, in the table and among the preemptions."""
    return await page.evaluate(TAGS, "#requests"), await page.evaluate(TAGS, "#preemptions")


async def picture(page: Any, name: str) -> None:
    folder = os.environ.get("BLOCKYARD_SCREENSHOTS")
    if folder:
        await page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


async def test_it_follows_the_scheduler(
    make_yard: Callable[..., Awaitable[Any]], page: Any
) -> None:
    yard = await make_yard(400, 100)
    await page.goto(yard.url)
    await figure(page, "running", "0")
    await says(page, "#more", "nobody is served at the moment")
    assert await page.locator("#map").evaluate(COLOURS) == 0

    for number in range(12):
        await yard.submit(f"request-{number:02}", 150 + 37 * (number % 5), 900)
    yard.worker.let(6)
    await figure(page, "running", "8")
    await figure(page, "waiting", "4")
    await says(page, "#more", "all 12 requests")
    assert await page.locator("#requests tr").count() == 12
    fits = "region => region.scrollHeight <= region.clientHeight"
    assert await page.locator(".scroll").evaluate(fits), "some can be seen only by scrolling"
    await says(page, "#requests", "no place in the batch is free")
    assert await page.locator("#map").evaluate(COLOURS) > 4

    # A pool of 6,400 slots fills up before the requests are done: somebody must make room.
    for _ in range(70):
        yard.worker.let(10)
        await page.locator(".figure").first.wait_for(timeout=WAIT_MS)
    await figure(page, "steps", "707")  # one is planned ahead, so nothing moves any more
    await says(page, "#preemptions", "lost its place")
    preempted = yard.dispatcher.engine.ledger().preemptions
    assert preempted > 0
    await says(page, "#requests", "one that lost its blocks comes first")
    await picture(page, "yard-light")
    light = await tags(page)
    await page.emulate_media(color_scheme="dark")
    await picture(page, "yard-dark")
    dark = await tags(page)
    for listed, lost in (light, dark):
        # A request has one colour in the table and among the preemptions, in either theme.
        assert lost and lost.items() <= listed.items()
        assert len(set(listed.values())) == 12, "each has its own"
    assert not set(light[1].items()) & set(dark[1].items())

    yard.worker.run_free()
    await figure(page, "running", "0")
    await figure(page, "waiting", "0")


async def test_a_block_is_described_in_words(
    make_yard: Callable[..., Awaitable[Any]], page: Any
) -> None:
    yard = await make_yard(32)
    await yard.submit("alone", 40, 8)
    yard.worker.let(2)
    await page.goto(yard.url)
    await figure(page, "running", "1")
    await page.keyboard.press("Tab")
    await page.locator("#map").focus()
    await page.keyboard.press("Home")
    await says(page, "#map-cell", "Block 0: active; 16 of 16 slots hold tokens; request alone")
    for key in ("ArrowRight", "ArrowRight"):
        await page.keyboard.press(key)
    await says(page, "#map-cell", "Block 2: active; 9 of 16 slots hold tokens; request alone")
    await page.keyboard.press("ArrowRight")
    await says(page, "#map-cell", "Block 3: free")
    await page.keyboard.press("End")
    await says(page, "#map-cell", "Block 31: free")
    yard.worker.run_free()
    await figure(page, "running", "0")
    await page.keyboard.press("Home")
    await says(page, "#map-cell", "Block 0: cached")


async def test_the_box_asks_and_shows_the_answer(
    make_yard: Callable[..., Awaitable[Any]], page: Any
) -> None:
    yard = await make_yard(64, template="")
    await page.goto(yard.url)
    await figure(page, "running", "0")
    await says(page, "#ask-how", "This model has no chat template")
    await page.get_by_label("Prompt").fill("Who goes there?")
    await page.get_by_label("Most tokens").fill("30")
    await page.get_by_role("button", name="Ask").click()
    yard.worker.let(3)
    await figure(page, "running", "1")
    await says(page, "#requests", "of 30")
    await page.get_by_role("button", name="Stop").click()
    await figure(page, "running", "0")

    yard.worker.run_free()
    await page.get_by_role("button", name="Ask").click()
    async with asyncio.timeout(60):
        while not await page.locator("#answer").text_content():
            await asyncio.sleep(0.05)


async def test_a_model_with_a_chat_template_is_asked_in_a_chat(
    make_yard: Callable[..., Awaitable[Any]], page: Any
) -> None:
    template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    yard = await make_yard(64, template=template)
    await page.goto(yard.url)
    await says(page, "#ask-how", "Asked as a chat.")
    await page.get_by_label("Prompt").fill("Who?")
    await page.get_by_label("Most tokens").fill("30")
    await page.get_by_role("button", name="Ask").click()
    yard.worker.let(3)
    # The witness has a token for each byte.
    await says(page, "#requests td:nth-child(4)", str(len("<user>Who?")))
    yard.worker.run_free()
    await figure(page, "running", "0")
    async with asyncio.timeout(60):
        while not await page.locator("#answer").text_content():
            await asyncio.sleep(0.05)


async def test_a_server_with_keys_asks_for_one_and_names_no_others(
    make_yard: Callable[..., Awaitable[Any]], browser: Any, keys: Any
) -> None:
    yard = await make_yard(64, keys=keys.ring)
    await yard.submit("request-of-blue", 40, 200, tenant="blue")
    await yard.submit("request-of-red", 40, 200, tenant="red/part")
    yard.worker.let(3)
    page = await browser.new_page()
    await page.goto(yard.url)
    await says(page, "#link", "no API key was given")
    for key, words in (("wrong", "this API key is not known here"), (keys.red, "live")):
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("button", name="Use it").click()
        await says(page, "#link", words)
    assert not await page.get_by_label("API key").is_visible()
    await figure(page, "running", "2")
    await says(page, "#requests", "request-of-red · red/part")
    await says(page, "#requests", "another tenant's")
    await page.locator("#map").focus()
    await page.keyboard.press("Home")
    await says(page, "#map-cell", "16 of 16 slots hold tokens; a request of another tenant")
    assert "blue" not in await page.content()
    # The key is this tab's, and lasts as long.
    await page.reload()
    await figure(page, "running", "2")
    await page.get_by_label("Most tokens").fill("5")
    await page.get_by_role("button", name="Ask").click()
    yard.worker.run_free()
    await figure(page, "running", "0")
    async with asyncio.timeout(60):
        while not await page.locator("#answer").text_content():
            await asyncio.sleep(0.05)
    assert "failed" not in (await page.locator("#answer").get_attribute("class") or "")
    await page.close()


async def test_a_refusal_is_shown(make_yard: Callable[..., Awaitable[Any]], page: Any) -> None:
    yard = await make_yard(8)
    await page.goto(yard.url)
    await figure(page, "running", "0")
    await page.get_by_label("Most tokens").fill("5000")
    await page.route("**/v1/chat/completions", _refuse)
    await page.get_by_role("button", name="Ask").click()
    await says(page, "#answer.failed", "does not fit")


async def _refuse(route: Any) -> None:
    error = 'data: {"error": {"message": "it does not fit"}}\n\n'
    await route.fulfill(status=200, content_type="text/event-stream", body=error)


async def test_a_million_blocks_in_few_cells(
    make_yard: Callable[..., Awaitable[Any]], page: Any
) -> None:
    yard = await make_yard(1_000_000)
    for number in range(8):
        await yard.submit(f"request-{number}", 2000, 50)
    yard.worker.let(40)
    received: list[int] = []
    page.on("response", lambda answer: received.append(answer.status))
    await page.goto(yard.url)
    await says(page, "#map-scale", "1,000,000 blocks of 16 tokens, 245 in a cell")
    await figure(page, "running", "8")
    assert await page.locator("#map").evaluate(COLOURS) > 0
    await page.locator("#map").focus()
    await page.keyboard.press("End")
    await says(page, "#map-cell", "Blocks 999845 to 999999: free")
    yard.worker.run_free()
    await figure(page, "running", "0")
    assert set(received) <= {200}
