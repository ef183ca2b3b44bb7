"""From what an ingress has received to the value with which a request goes on elsewhere."""

from blockyard.cluster.journal import Journal
from blockyard.scheduler.request import FinishReason, RequestSpec, RequestUpdate
from blockyard.scheduler.sampling import SamplingParams, TokenLogprobs
from blockyard.scheduler.snapshot import ChoiceSnapshot

SPEC = RequestSpec("r", (1, 2, 3), SamplingParams(), num_choices=4)
SCORED = (TokenLogprobs(-1.0, 1),)


def update(choice: int, *token_ids: int, ends: bool = False, scored: int = 0) -> RequestUpdate:
    reason = FinishReason.STOP if ends else None
    return RequestUpdate("r", token_ids, reason, choice=choice, prompt_logprobs=SCORED * scored)


def test_before_the_first_token_all_begin_together() -> None:
    journal = Journal(SPEC, 9, 100.0)
    journal.add(update(0, scored=2))
    snapshot = journal.snapshot(107.0)
    assert snapshot is not None
    assert snapshot.choices == (ChoiceSnapshot(0, (), (1, 2, 3), num_scored=2),)
    assert (snapshot.spec, snapshot.max_tokens, snapshot.age_seconds) == (SPEC, 9, 7.0)
    journal.end(0)  # its client does not want it any more
    snapshot = journal.snapshot(107.0)
    assert snapshot is not None and snapshot.choices == (ChoiceSnapshot(1, (), (2, 3)),)


def test_each_choice_goes_on_after_its_own_tokens() -> None:
    journal = Journal(SPEC, 9, 0.0)
    for choice in range(3):
        journal.add(update(choice, 10 + choice, scored=2 * (choice == 0)))
    journal.add(update(0, 20, 21))
    journal.add(update(1, 22, ends=True))
    snapshot = journal.snapshot(0.0)
    assert snapshot is not None
    assert snapshot.choices == (
        ChoiceSnapshot(0, (10, 20, 21), num_scored=2),
        ChoiceSnapshot(2, (12,)),
        ChoiceSnapshot(3),
    )
    assert snapshot.known_tokens == 6 and journal.choices == (0, 2, 3)


def test_nothing_goes_on_once_all_have_ended() -> None:
    journal = Journal(SPEC, 9, 0.0)
    for choice in range(3):
        journal.add(update(choice, 5, ends=True))
    journal.end(3)
    journal.add(update(3, 7))  # said before it heard
    assert journal.choices == () and journal.snapshot(0.0) is None
