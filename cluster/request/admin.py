"""Who may change what a server serves: nobody, unless it was started so.

With API keys only those of one tenant may; without any, everybody who reaches the server. Knows no
transport.
"""

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.caller import Caller

__all__ = ["ADMIN_TENANT", "AdminDoor"]

ADMIN_TENANT = "admin"
"""Whose keys open it, unless told otherwise."""


class AdminDoor:
    """Of one server.

    Args:
        open: whether anybody may pass.
        tenant: whose keys let callers pass, where keys are asked for.
        has_keys: whether they are.
    """

    def __init__(self, open: bool, tenant: str = ADMIN_TENANT, has_keys: bool = False) -> None:
        self._open = open
        self._tenant = tenant
        self._has_keys = has_keys

    def check(self, caller: Caller) -> None:
        """Let a caller pass.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if not self._open:
            raise ApiError(
                ApiCode.PERMISSION_DENIED,
                "",
                "this server was not started with such calls allowed; use "
                "`blockyard serve --allow-admin`",
            )
        if self._has_keys and caller.tenant != self._tenant:
            raise ApiError(
                ApiCode.PERMISSION_DENIED, "", "this API key may not change what the server serves"
            )
