"""Who may change what a server serves: nobody, unless it was started so.

With API keys an admin key must be shown; without any, everybody who reaches the server may. Knows
no transport.
"""

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.caller import Caller

__all__ = ["AdminDoor"]


class AdminDoor:
    """Of one server.

    Args:
        allowed: whether anybody may pass.
        has_keys: whether callers show API keys.
    """

    def __init__(self, allowed: bool, has_keys: bool = False) -> None:
        self._allowed = allowed
        self._has_keys = has_keys

    def check(self, caller: Caller) -> None:
        """Let a caller pass.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if not self._allowed:
            raise ApiError(
                ApiCode.PERMISSION_DENIED,
                "",
                "this server was not started with such calls allowed; use "
                "`blockyard serve --allow-admin`",
            )
        if self._has_keys and not caller.sees_all:
            raise ApiError(
                ApiCode.PERMISSION_DENIED,
                "",
                "this API key is not an admin's, and others may not change what is served",
            )
