"""What one viewer is told of the yard, and what it may not know."""

import json
from typing import Any

import pytest

from blockyard.cluster.books.group_books import GroupBooks
from blockyard.cluster.dashboard.yard_view import YardView
from blockyard.cluster.dispatch import GroupReport, GroupYard
from blockyard.cluster.request.caller import ANYBODY, Caller
from blockyard.scheduler.config import SchedulerConfig
from blockyard.scheduler.request import RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.scheduler import Scheduler
from blockyard.scheduler.yard_drawing import draw_yard

CONFIG = SchedulerConfig(
    max_context_tokens=100, block_size=4, max_running=4, max_step_tokens=16, max_waiting=9
)
BLUE, RED = Caller("blue"), Caller("red")
ADMIN = Caller("red", sees_all=True)


class Look:
    """One group, and what viewers are told of it."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(CONFIG, 10)
        self.view = YardView(["chatty"])
        self.text = ""

    def submit(self, request_id: str, num_prompt: int, max_tokens: int, **told: Any) -> None:
        prompt = tuple(range(1, num_prompt + 1))
        sampling = SamplingParams(max_tokens=max_tokens)
        self.scheduler.submit(RequestSpec(request_id, prompt, sampling, **told), 0.0)

    def told(self, viewer: Caller, model: str = "m") -> dict[str, Any]:
        if self.scheduler.may_plan:
            self.scheduler.plan(0.0)
        books = GroupBooks(self.scheduler.ledger())
        report = GroupReport("group-1", model, "cpu", "float32", books)
        found = GroupYard(report, draw_yard(self.scheduler, 10))
        self.text = self.view.news((found,), 12.5, viewer).decode()
        told: dict[str, Any] = json.loads(self.text)
        return told

    def requests(self, viewer: Caller) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.told(viewer)["groups"][0]["yard"]["requests"]
        return listed


@pytest.fixture
def look() -> Look:
    return Look()


def test_it_says_where_blocks_are_and_who_holds_them(look: Look) -> None:
    look.submit("a", 5, 9)
    told = look.told(ANYBODY)
    assert told["time"] == 12.5
    [group] = told["groups"]
    assert (group["id"], group["model"], group["block_size"]) == ("group-1", "m", 4)
    assert group["blocks"] == {"total": 10, "free": 8, "cached": 0, "active": 2, "fenced": 0}
    assert group["requests"] == {"running": 1, "waiting": 0, "parked": 0}
    assert group["shares"]["reservation"] == 5 / 40
    assert group["shares"]["internal"] == 3 / 40
    [request] = group["yard"]["requests"]
    assert (request["request_id"], request["state"], request["num_blocks"]) == ("a", "running", 2)
    assert group["yard"]["num_blocks"] == 10


def test_tenants_read_their_own_names(look: Look) -> None:
    look.submit("engine-name-1", 5, 9, tenant="blue", name="blues")
    look.submit("engine-name-2", 5, 9, tenant="blue/part")
    look.submit("engine-name-3", 30, 9, tenant="red", name="reds")
    names = {
        viewer: [each["request_id"] for each in look.requests(viewer)]
        for viewer in (BLUE, RED, ADMIN, ANYBODY)
    }
    assert names[BLUE] == ["blues", "engine-name-2", ""]
    assert names[RED] == ["", "", "reds"]
    assert names[ADMIN] == names[ANYBODY] == ["blues", "engine-name-2", "reds"]
    tenants = [each["tenant"] for each in look.requests(ADMIN)]
    assert tenants == ["blue", "blue/part", "red"]


def test_what_others_are_called_is_nowhere_in_the_news(look: Look) -> None:
    for number in range(6):  # four run, two wait behind them
        look.submit(f"engine-name-{number}", 5, 9, tenant="blue", name=f"blues-{number}")
    look.submit("engine-name-7", 5, 9, tenant="blue-not", name="no-blues")
    for viewer in (RED, Caller("bl"), Caller("blue-not/part")):
        look.told(viewer)
        assert "engine-name" not in look.text and "blue" not in look.text
    look.told(BLUE)
    assert "blues-5" in look.text and "no-blues" not in look.text


def test_marks_tell_requests_apart_and_nothing_more(look: Look) -> None:
    look.submit("a", 5, 9, tenant="blue", num_choices=2)
    look.submit("b", 5, 9, tenant="blue")
    marks = {each["request_id"]: each["mark"] for each in look.requests(BLUE)}
    assert len(set(marks.values())) == len(marks) == 2
    # The same at each look and for everybody, so that what changes can be followed.
    assert {each["mark"] for each in look.requests(RED)} == set(marks.values())
    # Whoever guesses a name cannot find its mark elsewhere.
    look.view = YardView()
    assert not {each["mark"] for each in look.requests(RED)} & set(marks.values())


def test_who_comes_first_is_named_to_who_may_know(look: Look) -> None:
    look.submit("first", 9, 9, tenant="blue", name="hers")
    look.submit("second", 9, 9, tenant="red")
    waiting = [each["behind"] for each in look.requests(ADMIN) if each["reason"] == "prefix"]
    assert waiting == ["hers"]
    assert {each["behind"] for each in look.requests(RED)} == {""}


def test_it_says_whether_a_model_can_be_asked_in_a_chat(look: Look) -> None:
    assert look.told(ANYBODY, "chatty")["groups"][0]["chats"] is True
    assert look.told(ANYBODY, "other")["groups"][0]["chats"] is False


def test_no_group_is_no_failure() -> None:
    assert json.loads(YardView().news((), 1.0, ANYBODY)) == {"time": 1.0, "groups": []}
