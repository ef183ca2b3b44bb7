"""Answers find who asked, and nobody else."""

import asyncio

import pytest

from blockyard.cluster.binding.waiting_messages import Places
from blockyard.cluster.books.central_books import CentralBooksAnswer
from blockyard.cluster.open_questions import OpenQuestions


async def test_an_answer_goes_to_the_question_of_its_kind_and_ticket() -> None:
    questions = OpenQuestions()
    with questions.asked(1, Places) as first, questions.asked(2, Places) as second:
        for stray in (Places(3, {}), CentralBooksAnswer(1, None)):  # type: ignore[arg-type]
            questions.settle(stray)
        assert not first.done() and not second.done()
        questions.settle(Places(2, {7: 1}))
        questions.settle(Places(2, {7: 9}))
        assert (await second).places == {7: 1}
        assert not first.done()
    questions.settle(Places(1, {}))  # too late
    assert not first.done()


async def test_at_the_end_whoever_waits_is_told() -> None:
    questions = OpenQuestions()
    with questions.asked(1, Places) as answered, questions.asked(2, Places) as waiting:
        questions.settle(Places(1, {}))
        questions.end(OSError("gone"))
        assert (await answered).ticket == 1
        with pytest.raises(OSError, match="gone"):
            await waiting
    with questions.asked(3, Places) as waiting:
        questions.end()
        with pytest.raises(asyncio.CancelledError):
            await waiting
