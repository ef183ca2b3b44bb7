"""Who may call, and for which tenant: keys that callers show, kept as digests.

A tenant may be held to a number of requests at once. An administrator's key shows the requests of
all tenants to people who look. Without any key everybody may call. Knows no transport. Units:
requests.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError
from blockyard.cluster.request.limits import check_name

__all__ = ["ApiKey", "KeyRing", "read_api_keys"]

_SCHEME = "bearer "
_LEAST_CHARACTERS = 16
_ADMIN = "admin"
_FORM = f"`TENANT KEY [MAX_LIVE] [{_ADMIN}]`"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key: whose it is, its SHA-256, how many requests may be live with it, what it shows.

    An administrator sees the names of all tenants' requests where others see their own.
    """

    tenant: str
    digest: bytes
    max_live: int | None = None
    is_admin: bool = False

    def __repr__(self) -> str:
        """Leave the digest out."""
        return f"ApiKey({self.tenant!r}, max_live={self.max_live}, is_admin={self.is_admin})"


class KeyRing:
    """The keys of one server, and how many requests each tenant has live in this process."""

    def __init__(self, keys: Sequence[ApiKey] = ()) -> None:
        self._keys = tuple(keys)
        # Of several keys of one tenant the least, so that their order means nothing.
        self._limits: dict[str, int] = {}
        for key in self._keys:
            if key.max_live is not None:
                least = self._limits.get(key.tenant, key.max_live)
                self._limits[key.tenant] = min(least, key.max_live)
        self._live: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Whether callers must show a key."""
        return bool(self._keys)

    def tenant_of(self, authorization: str | None) -> str:
        """The tenant of a caller; see `key_of`. Empty when there are no keys."""
        key = self.key_of(authorization)
        return key.tenant if key is not None else ""

    def key_of(self, authorization: str | None) -> ApiKey | None:
        """The key of a caller, by its `authorization`, which is `Bearer` and the key.

        None when there are no keys, and everybody may call.

        Raises:
            ApiError: UNAUTHENTICATED: there are keys, and this is none of them.
        """
        if not self._keys:
            return None
        shown = authorization or ""
        if not shown.lower().startswith(_SCHEME):
            raise ApiError(
                ApiCode.UNAUTHENTICATED,
                "",
                "no API key was given; send `Authorization: Bearer KEY`",
            )
        digest = _digest(shown[len(_SCHEME) :].strip())
        # All are compared, each in the same time, so that time tells nothing.
        found = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if not found:
            raise ApiError(ApiCode.UNAUTHENTICATED, "", "this API key is not known here")
        return found[0]

    @contextmanager
    def live(self, tenant: str) -> Iterator[None]:
        """Count a request while it is live.

        Raises:
            ApiError: RESOURCE_EXHAUSTED: the tenant has as many as it may.
        """
        most = self._limits.get(tenant)
        if most is not None and self._live[tenant] >= most:
            raise ApiError(
                ApiCode.RESOURCE_EXHAUSTED,
                "",
                f"{most} requests of this API key are live, as many as may be; try again when one "
                "has ended",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._live[tenant] += 1
        try:
            yield
        finally:
            self._live[tenant] -= 1
            if not self._live[tenant]:
                del self._live[tenant]


def read_api_keys(file: Path) -> tuple[ApiKey, ...]:
    """Keys from a file with a line for each: tenant, key, perhaps most live requests and `admin`.

    Empty lines and those that begin with `#` are passed over.

    Raises:
        ValueError: a line is malformed; the message has its number and not the key.
        OSError: the file cannot be read.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            keys.append(_read_key(words))
        except (ValueError, ApiError) as error:
            raise ValueError(f"line {number} of the API keys: {error}") from None
    if not keys:
        raise ValueError(f"the file of API keys has none; give {_FORM} in a line")
    if len({key.digest for key in keys}) < len(keys):
        raise ValueError("the file of API keys has one key twice")
    return tuple(keys)


def _read_key(words: list[str]) -> ApiKey:
    is_admin = len(words) > 2 and words[-1] == _ADMIN
    if is_admin:
        words = words[:-1]
    if len(words) not in (2, 3):
        raise ValueError(f"has too few or too many words; give {_FORM}")
    tenant, key, *limit = words
    check_name("tenant", tenant)
    if len(key) < _LEAST_CHARACTERS:
        raise ValueError(f"the key has {len(key)} characters; give at least {_LEAST_CHARACTERS}")
    max_live = int(limit[0]) if limit else None
    if max_live is not None and max_live < 1:
        raise ValueError(f"MAX_LIVE is {max_live}; give at least 1")
    return ApiKey(tenant, _digest(key), max_live, is_admin)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
