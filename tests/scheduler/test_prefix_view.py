import random

from blockyard.scheduler.block_keys import NO_EXTRAS, PrefixExtras, PromptKeys, block_keys
from blockyard.scheduler.prefix_view import PrefixView

TOKENS = tuple(range(100))


def test_it_tells_how_far_a_prompt_is_known() -> None:
    keys = block_keys(TOKENS, 4, NO_EXTRAS)
    for known in range(len(keys) + 1):
        view = PrefixView(keys[:known])
        assert (view.num_known(keys), view.num_known(keys[:3])) == (known, min(known, 3))
        assert view.num_known(block_keys(TOKENS[4:], 4, NO_EXTRAS)) == 0
    assert PrefixView().num_known(()) == 0


def test_it_follows_what_comes_and_goes() -> None:
    keys = block_keys(TOKENS, 4, NO_EXTRAS)
    view = PrefixView()
    chance, known = random.Random(1), 0
    for _ in range(200):
        now = chance.randint(0, len(keys))
        view.apply(keys[now:known], keys[known:now])
        known = now
        assert (len(view), view.num_known(keys)) == (known, known)
        assert (keys[0] in view) == (known > 0)
    view.apply(keys, ())
    view.apply(keys[:2], keys[:2])  # away first, then added
    assert view.num_known(keys) == 2


def test_keys_of_a_prompt_are_made_once_for_each_block_size() -> None:
    extras = PrefixExtras(salt="s")
    keys = PromptKeys(TOKENS, extras)
    for size in (4, 8):
        assert keys.of(size) == block_keys(TOKENS, size, extras)
        assert keys.of(size) is keys.of(size)
