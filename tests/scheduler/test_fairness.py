import random

import pytest

from blockyard.scheduler.fairness import DECODE_WEIGHT, TenantCounters


def test_a_tenant_pays_for_what_is_computed_and_a_decoded_token_weighs_more() -> None:
    counters = TenantCounters()
    counters.arrive("a", ())
    counters.charge("a", 100, 0)
    counters.charge("a", 0, 7)
    assert counters.charged("a") == 100 + 7 * DECODE_WEIGHT
    counters.charge("a", 0, 0)  # all of it was found in the prefix index
    assert counters.charged("a") == 100 + 7 * DECODE_WEIGHT
    with pytest.raises(ValueError, match="'a'"):
        counters.charge("a", -1, 0)


def test_alone_a_tenant_has_no_rival() -> None:
    counters = TenantCounters()
    counters.arrive("", ())
    assert not counters.contended
    counters.arrive("b", ("",))
    assert counters.contended


def test_a_newcomer_is_lifted_to_the_least_of_those_who_wait() -> None:
    counters = TenantCounters()
    for name, tokens in (("a", 500), ("b", 300), ("c", 100)):
        counters.arrive(name, ())
        counters.charge(name, tokens, 0)
    before = counters.charged("a")
    counters.arrive("new", ("a", "b"))
    assert counters.charged("new") == min(counters.charged("a"), counters.charged("b"))
    assert counters.charged("a") == before


def test_who_waits_already_is_not_lifted() -> None:
    counters = TenantCounters()
    counters.arrive("a", ())
    counters.arrive("b", ("a",))
    counters.charge("b", 900, 0)
    counters.arrive("a", ("a", "b"))
    assert counters.charged("a") == 0


def test_being_away_saves_nothing_and_forgives_nothing() -> None:
    counters = TenantCounters()
    counters.arrive("saver", ())
    counters.arrive("debtor", ("saver",))
    counters.charge("debtor", 1000, 0)
    counters.arrive("busy", ("saver",))
    counters.charge("busy", 400, 0)
    counters.arrive("saver", ("busy",))
    counters.arrive("debtor", ("busy", "saver"))
    assert (counters.charged("saver"), counters.charged("debtor")) == (400, 1000)


def test_when_nobody_waits_a_newcomer_starts_from_who_waited_last() -> None:
    counters = TenantCounters()
    counters.arrive("a", ())
    counters.charge("a", 250, 0)
    counters.left("a")
    counters.arrive("b", ())
    assert counters.charged("b") == 250


def test_invented_tenants_cost_a_bounded_memory() -> None:
    counters = TenantCounters()
    counters.arrive("real", ())
    counters.charge("real", 10**9, 0)
    counters.arrive("worse", ("real",))
    counters.charge("worse", 10**9, 0)
    for index in range(5000):
        counters.arrive(f"invented {index}", ("real",))
        counters.charge(f"invented {index}", 1 + index % 7, 0)
    assert counters.num_tenants < 300
    assert counters.charged("real") == 10**9
    assert counters.charged("worse") > 10**9


def test_two_who_always_wait_stay_within_one_request_of_each_other() -> None:
    rng = random.Random(2)
    counters = TenantCounters()
    counters.arrive("small", ())
    counters.arrive("large", ("small",))
    largest = 2000 + DECODE_WEIGHT * 500
    for _ in range(3000):
        name = min(("small", "large"), key=counters.charged)
        size = 1 if name == "small" else 20
        counters.charge(name, rng.randint(1, 100) * size, rng.randint(1, 25) * size)
        gap = abs(counters.charged("small") - counters.charged("large"))
        assert gap <= largest
