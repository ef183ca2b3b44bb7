"""What a request finds in the prefix index, and what it leaves there.

Joins the index, the pool's kept blocks and the waits for prefixes under way; knows nothing of
places in the batch or of plans. Units: tokens, blocks.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from blockyard.scheduler.block_keys import KeyChain, root_key
from blockyard.scheduler.block_pool import BlockPool
from blockyard.scheduler.prefix_index import PrefixIndex
from blockyard.scheduler.prefix_waits import PrefixWaits
from blockyard.scheduler.request import NEVER, Request

__all__ = ["PrefixCache"]


class PrefixCache:
    """The prefix index of one pool, as requests use it.

    All its blocks are of one version of the weights. A request that was meant for another one, as
    its keys tell, takes part as one of this.
    """

    def __init__(self, num_blocks: int, block_size: int, weight_version: str = "") -> None:
        self.index = PrefixIndex()
        self.waits = PrefixWaits()
        self.pool = BlockPool(num_blocks, block_size, self.index.remove)
        self._block_size = block_size
        self._weight_version = weight_version

    def join(self, request: Request, packed: bytes = b"") -> None:
        """Let a new request take part, unless it does not want to, or wants its prompt scored.

        Tokens that are found are not computed, so nobody could say how likely they were. `packed`
        is its prompt, if it is at hand so.
        """
        spec = request.spec
        if spec.use_prefix_cache and spec.sampling.prompt_logprobs is None:
            extras, hints = spec.extras, spec.block_keys[: request.num_prompt // self._block_size]
            if extras.weight_version != self._weight_version:
                extras, hints = replace(extras, weight_version=self._weight_version), ()
            request.chain = KeyChain(root_key(extras), self._block_size, hints, packed)

    def match(self, request: Request) -> None:
        """Bring `request.path` up to date with the index: blocks that it need not compute.

        Its last known token is always computed, or there would be no logits to sample from.
        """
        chain = request.chain
        if chain is not None:
            most = (len(request.tokens) - 1) // self._block_size
            chain.reach(request.tokens, most)
            self.index.extend(request.path, chain, most)

    def is_alone(self, request: Request) -> bool:
        """Whether nobody has blocks that a request could share, nor computes any.

        A key that is not known names no block; one that is may be another content's.
        """
        chain, tokens = request.chain, request.tokens
        if chain is None or len(tokens) <= self._block_size:
            return True
        chain.reach(tokens, 1)
        key = chain.keys[0]
        return not (self.index.knows(key) or self.waits.knows(key))

    def num_kept(self, request: Request) -> int:
        """How many of the blocks matched are available ones, which sharing them would take."""
        full = request.num_computed // self._block_size
        return self.pool.num_cached_of([entry.block_id for entry in request.path[full:]])

    def begin(self, request: Request) -> None:
        """A request begins to compute after the blocks of its path, which it holds now."""
        if request.chain is not None:
            request.publish_at = (len(request.path) + 1) * self._block_size
            self.waits.announce(request)

    def fork(self, parent: Request, child: Request) -> None:
        """A new choice knows and has left what its parent has, so far."""
        if parent.chain is not None:
            child.chain = parent.chain.copy()
            child.path = list(parent.path)
            child.publish_at = parent.publish_at

    def branch(self, parent: Request, child: Request) -> None:
        """A new choice that parts from its parent by its newest token knows the blocks before."""
        if parent.chain is not None:
            child.chain = parent.chain.copy((len(child.tokens) - 1) // self._block_size)
            child.path = parent.path[: child.num_computed // self._block_size]

    def publish(self, request: Request) -> tuple[list[tuple[int, int]], list[Request]]:
        """Make a request's newly filled blocks findable, once their step is committed.

        Returns:
            Where an equal block was in the index already: the table's index, and that block, which
            the table must take; and requests that need wait no longer.
        """
        chain, path = request.chain, request.path
        doubled: list[tuple[int, int]] = []
        resumed: list[Request] = []
        if chain is None:
            return doubled, resumed
        table, store = request.table.block_ids, self.index.store
        done = request.num_computed // self._block_size
        begin = len(path)
        chain.reach(request.tokens, done)
        if done > begin + 1:
            # A prompt, most likely of blocks that nobody else has.
            run = self.index.store_run(path[-1] if path else None, chain, begin, table[begin:done])
            for entry in run:
                self.pool.publish(entry.block_id)
            path += run
        parent = path[-1] if path else None
        for index in range(len(path), done):
            own = table[index]
            parent = store(parent, chain, index, own)
            if parent is None:
                # A hint was wrong, or a key of somebody else: this one leaves no more.
                resumed = self.waits.withdraw(request, begin, request.num_announced)
                request.publish_at = NEVER
                request.chain = None
                path.clear()
                return doubled, resumed
            if parent.block_id == own:
                self.pool.publish(own)
            else:
                doubled.append((index, parent.block_id))
            path.append(parent)
        request.publish_at = (done + 1) * self._block_size
        if begin < request.num_announced:
            resumed = self.waits.withdraw(request, begin, done)
        return doubled, resumed

    def stop(self, request: Request) -> list[Request]:
        """Let a request publish no more; returns those who waited for it."""
        request.publish_at = NEVER
        begin, end = len(request.path), request.num_announced
        return self.waits.withdraw(request, begin, end) if begin < end else []

    def reset(self, computed: Iterable[Request]) -> list[Request]:
        """Forget everything; what `computed`, who have KV, hold is not published either.

        Returns:
            Requests that need wait no longer.
        """
        resumed: list[Request] = []
        for request in computed:
            resumed += self.waits.withdraw(request, 0, request.num_announced)
            request.publish_at = NEVER
            request.chain = None
            request.path.clear()
        self.index.clear()
        self.pool.unpublish_all()
        return resumed

    def check(self, holding: Collection[Request]) -> None:
        """Prove index, pool and waits, and that they agree with the tables of who holds blocks.

        Raises:
            AssertionError: naming the block or the request.
        """
        self.pool.check()
        self.index.check()
        self.waits.check()
        entries = {entry.block_id: entry for entry in self.index.entries()}
        if entries.keys() != self.pool.published():
            odd = sorted(entries.keys() ^ self.pool.published())
            raise AssertionError(f"blocks {odd} are either indexed or kept, not both")
        turn = {block_id: turn for turn, block_id in enumerate(self.pool.reclaim_order())}
        for block_id, entry in entries.items():
            parent = entry.parent
            if parent is None or parent.block_id not in turn:
                continue
            if turn.get(block_id, len(turn)) > turn[parent.block_id]:
                raise AssertionError(
                    f"block {parent.block_id} would be reclaimed before block {block_id}, "
                    "which follows it"
                )
        for request in holding:
            self._check_path(request, entries.keys())

    def _check_path(self, request: Request, indexed: Collection[int]) -> None:
        name, path, chain = request.request_id, request.path, request.chain
        if not request.table.block_ids:
            return
        if chain is None:
            if path or request.publish_at != NEVER:
                raise AssertionError(f"request {name!r} takes no part, yet it publishes")
            return
        full = request.num_computed // self._block_size
        if request.handle is None:
            path = path[:full]  # the rest is what it may find when it comes back
        if len(path) > full:
            raise AssertionError(f"request {name!r} published a block before it was computed")
        true = KeyChain(chain.root, self._block_size)
        true.reach(request.tokens, len(path))
        for index, entry in enumerate(path):
            parent = path[index - 1] if index else None
            if entry.block_id not in indexed or entry.parent is not parent:
                raise AssertionError(f"request {name!r} holds block {index} of a broken path")
            if entry.block_id != request.table.block_ids[index]:
                raise AssertionError(f"request {name!r} holds block {index} beside its path")
            if entry.tokens != true.block(index) or entry.root != chain.root:
                raise AssertionError(f"request {name!r} holds block {index} of other content")
