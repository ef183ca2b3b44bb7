"""What one viewer is told of the yard, as JSON: books of every group and a picture of one pool.

A viewer reads the names of its own tenant's requests; others' have a mark in their place that says
nothing and stays the same, so that their blocks can still be told apart. Knows no HTTP. Units:
seconds; ratios from 0 to 1.
"""

import hashlib
import secrets
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import msgspec

from blockyard.cluster.dispatch import GroupYard
from blockyard.cluster.request.caller import Caller
from blockyard.scheduler.contiguous.shadow_report import PolicyReport
from blockyard.scheduler.yard_map import YardMap, YardRequest

__all__ = ["YardView"]

_SECRET_BYTES = 16
_MARK_BYTES = 6


class YardView:
    """Makes news for viewers.

    Args:
        chat_models: models that can be asked with a conversation.
    """

    def __init__(self, chat_models: Collection[str] = ()) -> None:
        self._chat_models = frozenset(chat_models)
        # Without it whoever knows a name could find its mark.
        self._secret = secrets.token_bytes(_SECRET_BYTES)

    def news(self, yards: tuple[GroupYard, ...], now: float, viewer: Caller) -> bytes:
        """One line of JSON; a picture's cells are base64. `now` is in seconds since 1970."""
        groups = [self._group(yard, viewer) for yard in yards]
        return msgspec.json.encode({"time": now, "groups": groups})

    def _group(self, found: GroupYard, viewer: Caller) -> dict[str, Any]:
        report, ledger = found.report, found.report.ledger
        slots = ledger.blocks.total * ledger.block_size
        return {
            "id": report.group_id,
            "model": report.model,
            "chats": report.model in self._chat_models,
            "device": report.device,
            "dtype": report.dtype,
            "block_size": ledger.block_size,
            "step": ledger.step,
            "blocks": ledger.blocks,
            "host_blocks": ledger.host_blocks,
            "slots": ledger.slots,
            "requests": ledger.requests,
            "preempted": ledger.preempted,
            "stalled_steps": ledger.stalled_steps,
            "shares": {
                "tokens": ledger.slots.filled / slots,
                "reservation": ledger.slots.promised / slots,
                "internal": ledger.slots.empty_tail / slots,
                "external": 0.0,
            },
            "contiguous": [_contiguous(policy) for policy in report.books.shadow],
            "yard": self._picture(found.yard, viewer) if found.yard is not None else None,
        }

    def _picture(self, yard: YardMap, viewer: Caller) -> dict[str, Any]:
        by_id = {request.request_id: request for request in yard.requests}
        told = {field.name: getattr(yard, field.name) for field in fields(yard)}
        requests = [self._request(request, by_id, viewer) for request in yard.requests]
        return {**told, "requests": requests}

    def _request(
        self, request: YardRequest, by_id: Mapping[str, YardRequest], viewer: Caller
    ) -> dict[str, Any]:
        told = {field.name: getattr(request, field.name) for field in fields(request)}
        del told["name"]
        ahead = by_id.get(request.behind)
        return told | {
            "request_id": _name(request, viewer),
            "tenant": request.tenant if viewer.may_name(request.tenant) else "",
            "behind": _name(ahead, viewer) if ahead is not None else "",
            "mark": self._mark(request.request_id),
        }

    def _mark(self, request_id: str) -> str:
        made = hashlib.blake2b(request_id.encode(), key=self._secret, digest_size=_MARK_BYTES)
        return made.hexdigest()


def _name(request: YardRequest, viewer: Caller) -> str:
    """As its client calls it; empty for whoever may not know."""
    return (request.name or request.request_id) if viewer.may_name(request.tenant) else ""


def _contiguous(policy: PolicyReport) -> dict[str, Any]:
    books = policy.books
    return {
        "policy": books.policy,
        "running": books.running,
        "queued": policy.queued,
        "shares": {
            "tokens": books.filled / books.capacity,
            "reservation": books.reservation / books.capacity,
            "internal": books.internal / books.capacity,
            # Free, and of no use for a request that needs more than the largest hole.
            "external": (books.free - books.largest_hole) / books.capacity,
        },
    }
