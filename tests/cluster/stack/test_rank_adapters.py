"""An adapter that is loaded on the ranks of a group: on all of them or on none."""

from typing import Any

import pytest

from blockyard.cluster.group_ranks import GroupRanks
from blockyard.cluster.rank import RankDied
from blockyard.workers.adapter_description import AdapterDescription, AdapterRefused
from blockyard.workers.config import WorkerConfig

ONE = AdapterDescription("a", "/adapters/a", "1", 4)


class Rank:
    """Loads adapters, unless it is told to fail."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.failure: str | Exception = ""

    async def call(self, method: str, *arguments: Any) -> Any:
        if isinstance(self.failure, Exception):
            raise self.failure
        if method == "load_adapter":
            if not self.failure:
                self.loaded.append(arguments[0].adapter_id)
            return self.failure
        assert method == "drop_adapter"
        if arguments[0] in self.loaded:
            self.loaded.remove(arguments[0])
        return None


@pytest.mark.parametrize(
    ("failure", "told"),
    [("its rank is 64", AdapterRefused), (RankDied("rank 1"), RankDied), (OSError("x"), OSError)],
)
async def test_when_one_rank_cannot_load_it_none_keeps_it(
    failure: str | Exception, told: type[Exception]
) -> None:
    ranks = [Rank() for _ in range(3)]
    configs = [WorkerConfig("", 64, rank=rank, world_size=3) for rank in range(3)]
    group = GroupRanks(ranks, configs, ["here"] * 3)
    ranks[1].failure = failure
    with pytest.raises(told, match=str(failure)):
        await group.load_adapter(ONE)
    assert [rank.loaded for rank in ranks] == [[], [], []]
    ranks[1].failure = ""
    await group.load_adapter(ONE)
    assert [rank.loaded for rank in ranks] == [[ONE.adapter_id]] * 3
    await group.drop_adapter(ONE.adapter_id)
    assert [rank.loaded for rank in ranks] == [[], [], []]
