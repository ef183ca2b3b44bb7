"""A request goes on elsewhere, in another pool with other blocks, and nobody can tell."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from blockyard.scheduler.block_keys import PrefixExtras, block_keys
from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused, RequestSpec
from blockyard.scheduler.sampling import SamplingParams
from blockyard.scheduler.snapshot import ChoiceSnapshot, RequestSnapshot
from blockyard.scheduler.snapshot_codec import SnapshotInvalid, decode_snapshot, encode_snapshot

Make = Callable[..., Any]

POOLS = st.sampled_from(((12, 4), (30, 2), (7, 8), (50, 1), (40, 4)))


def carried(snapshot: RequestSnapshot) -> RequestSnapshot:
    """As it arrives after it was written down."""
    return decode_snapshot(json.loads(json.dumps(encode_snapshot(snapshot))))


def move(old: Any, new: Any) -> None:
    """Take all that the old rig serves to the new one, which has served nobody yet."""
    new.arrivals = old.arrivals
    live = {spec.request_id: spec for spec in old.specs.values()}
    for request_id, spec in sorted(live.items(), key=lambda item: item[1].sampling.seed):
        snapshot = old.scheduler.snapshot(request_id, old.now)
        if snapshot is None:
            continue
        snapshot = carried(snapshot)
        new.scheduler.resume(snapshot, new.now)
        # The rig's own books resolve an absent max_tokens by the new pool; it was resolved before.
        told = replace(spec, sampling=replace(spec.sampling, max_tokens=snapshot.max_tokens))
        new.specs[request_id] = told
        for choice in snapshot.choices:
            name = new._begin(request_id, choice.choice, list(choice.token_ids))
            assert list(choice.token_ids) == old.outputs.get(name, []), "all that was told, no more"
            for number in choice.begins:
                new.books.want(request_id, number, name)
        if all(choice.choice for choice in snapshot.choices):
            new.specs.pop(request_id)  # its first choice has ended before
    new.check()


@settings(
    max_examples=60,
    # A failure shows itself as it is: to make it smaller takes minutes.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_interrupted_anywhere_it_makes_the_same_tokens(
    data: st.DataObject, make_rig: Make, prompt_of: Make
) -> None:
    rigs: list[Any] = []
    for hop in range(1 + data.draw(st.integers(1, 3))):
        num_blocks, block_size = data.draw(POOLS)
        rig = make_rig(num_blocks, block_size, max_running=5, num_host_blocks=6, prefill_rate=4.0)
        if rigs:
            move(rigs[-1], rig)
        rigs.append(rig)
        for _ in range(0 if hop > 1 else data.draw(st.integers(1, 4))):
            length = data.draw(st.integers(1, 16))
            rig.submit(
                f"request {rig.arrivals}",
                prompt_of(16, data.draw(st.integers(0, 1)))[:length],
                data.draw(st.integers(1, 20)),
                stop=tuple(range(0, 97, 13)) if data.draw(st.booleans()) else (),
                num_choices=data.draw(st.integers(1, 3)),
                use_prefix_cache=data.draw(st.booleans()),
            )
        for _ in range(data.draw(st.integers(0, 24))):
            rig.step()
        if rig.live() and data.draw(st.booleans()):
            name = data.draw(st.sampled_from(rig.live()))
            rig.abort_choice(rig.specs[name].request_id, rig.books.choices[name])
        if data.draw(st.booleans()):
            rig.plan()  # what a step in flight computes is lost
    rigs[-1].finish()  # every output is compared with the oracle's where it ends
    ended = {name for rig in rigs for name, reason in rig.reasons.items()}
    assert {name for rig in rigs for name in rig.specs} <= ended


def test_a_search_goes_on_and_remembers_its_numbers(make_rig: Make, prompt_of: Make) -> None:
    old, new = make_rig(40), make_rig(30, block_size=8)
    old.submit("r", prompt_of(10), max_tokens=12, num_choices=2)
    for _ in range(4):
        old.step()
    assert old.fork("r", 5, 60) and old.fork("r/1", 6)
    assert old.abort_choice("r", 5)
    snapshot = old.scheduler.snapshot("r", old.now)
    assert [(one.choice, one.begins) for one in snapshot.choices] == [(0, ()), (1, (6,))]
    assert snapshot.extra_choices == (5, 6)
    move(old, new)
    assert not new.scheduler.fork("r", 0, 5), "it waits, and 5 is taken"
    new.step()
    assert not new.scheduler.fork("r", 0, 5) and new.fork("r", 7)
    new.finish()
    assert set(new.ended) == {"r", "r/1", "r/6", "r/7"}


def test_who_goes_on_only_for_others_is_left_behind(make_rig: Make, prompt_of: Make) -> None:
    old, new = make_rig(40, max_step_tokens=9), make_rig(40)
    old.submit("r", prompt_of(20), max_tokens=6, num_choices=3)
    old.step()
    old.abort_choice("r", 0)
    assert old.scheduler.snapshot("r", 0.0).choices == (ChoiceSnapshot(1, (), (2,)),)
    move(old, new)
    new.finish()
    assert sorted(new.ended) == ["r/1", "r/2"]


def test_its_age_and_its_deadline_travel_with_it(make_rig: Make, prompt_of: Make) -> None:
    old, new = make_rig(40), make_rig(40)
    old.submit("r", prompt_of(10), max_tokens=12, deadline_seconds=30.0)
    for _ in range(3):
        old.step()
    snapshot = carried(old.scheduler.snapshot("r", old.now))
    assert snapshot.age_seconds == 3.0 and snapshot.has_started
    new.now = 500.0
    new.scheduler.resume(snapshot, new.now)
    assert new.scheduler.expire(1000.0) == [], "what was computed is paid for"
    assert new.scheduler.snapshot("r", 500.0) == snapshot
    assert new.scheduler.snapshot("q", 500.0) is None
    waits = replace(
        snapshot,
        spec=replace(snapshot.spec, request_id="waits"),
        choices=(replace(snapshot.choices[0], token_ids=()),),
    )
    new.scheduler.resume(waits, new.now)
    assert new.scheduler.expire(new.now + 26.0) == []
    (update,) = new.scheduler.expire(new.now + 28.0)
    assert (update.request_id, update.finish_reason) == ("waits", FinishReason.DEADLINE)


def test_an_absent_max_tokens_stays_what_the_first_pool_made_of_it(
    make_rig: Make, prompt_of: Make
) -> None:
    old, new = make_rig(8), make_rig(40)
    old.submit("r", prompt_of(10))
    old.step()
    move(old, new)
    new.finish()
    assert len(new.outputs["r"]) == 8 * 4 - 10 + 1


def test_what_could_never_be_finished_here_is_refused(make_rig: Make, prompt_of: Make) -> None:
    old, new = make_rig(40), make_rig(3, max_running=2)
    old.submit("long", prompt_of(10), max_tokens=12)
    old.submit("wide", prompt_of(4), max_tokens=2, num_choices=3)
    for request_id, field in (("long", "max_tokens"), ("wide", "n")):
        with pytest.raises(RequestRefused) as refused:
            new.scheduler.resume(old.scheduler.snapshot(request_id, 0.0), 0.0)
        assert (refused.value.code, refused.value.field) == (RefusalCode.INVALID, field)
    assert not new.scheduler.has_work
    good = old.scheduler.snapshot("long", 0.0)
    old.step()
    with pytest.raises(RequestRefused) as refused:
        old.scheduler.resume(good, 0.0)
    assert refused.value.field == "request_id"
    for bad in (
        replace(good, choices=()),
        replace(good, choices=(ChoiceSnapshot(), ChoiceSnapshot())),
        replace(good, choices=(ChoiceSnapshot(3),)),
        replace(good, choices=(ChoiceSnapshot(0, (1,) * 12),)),
        replace(good, max_tokens=0),
    ):
        with pytest.raises(RequestRefused):
            make_rig(40).scheduler.resume(bad, 0.0)
    draining = make_rig(40).scheduler
    draining.start_drain()
    with pytest.raises(RequestRefused) as refused:
        draining.resume(good, 0.0)
    assert refused.value.code is RefusalCode.UNAVAILABLE


FULL = RequestSnapshot(
    RequestSpec(
        "r",
        (1, 2, 3),
        SamplingParams(
            max_tokens=9,
            seed=2**64 - 1,
            stop_token_ids=(4,),
            logit_bias=((5, -1.5),),
            bad_words=((6, 7), (8,)),
        ),
        tenant="t",
        deadline_seconds=2.0,
        extras=PrefixExtras(salt="s"),
        num_choices=2,
    ),
    9,
    (ChoiceSnapshot(0, (5, 6), (1,), 3),),
    (7,),
    1.5,
)


def test_every_part_is_carried() -> None:
    assert carried(FULL) == FULL
    keyed = replace(FULL, spec=replace(FULL.spec, block_keys=block_keys((1, 2), 2, PrefixExtras())))
    assert carried(keyed) == keyed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("version", 2, "version is 2; version 1 is understood"),
        ("spec", 3, "snapshot.spec is no object"),
        ("spec.request_id", 3, "snapshot.spec.request_id is int, not str"),
        ("spec.prompt_token_ids", [1, "2"], r"snapshot.spec.prompt_token_ids\[1\] is str, not int"),
        ("spec.prompt_token_ids", 5, "snapshot.spec.prompt_token_ids is no list"),
        ("spec.sampling.logit_bias", [[1]], r"logit_bias\[0\] has 1 items, not 2"),
        ("spec.sampling.top_p", 0.0, "snapshot.spec.sampling: top_p"),
        ("spec.sampling.colour", 1, "snapshot.spec.sampling has an unknown part 'colour'"),
        ("spec.block_keys", ["xyz"], r"block_keys\[0\] is no hexadecimal text"),
        ("max_tokens", True, "snapshot.max_tokens is bool, not int"),
        ("max_tokens", None, "snapshot.max_tokens is NoneType, not int"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(path: str, value: Any, message: str) -> None:
    whole = encode_snapshot(FULL)
    *parents, last = path.split(".")
    part = whole
    for name in parents:
        part = part[name]
    part[last] = value
    with pytest.raises(SnapshotInvalid, match=message):
        decode_snapshot(whole)
    del part[last]
    if last == "max_tokens":
        with pytest.raises(SnapshotInvalid, match="snapshot lacks 'max_tokens'"):
            decode_snapshot(whole)


def test_only_an_object_is_a_snapshot() -> None:
    with pytest.raises(SnapshotInvalid, match="a snapshot is an object, this is list"):
        decode_snapshot([])
