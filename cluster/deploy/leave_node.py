"""Takes a container's Ray node out of service before the container ends; a pod's preStop hook.

`python -m blockyard.cluster.deploy.leave_node` first waits for load balancers to notice that the
pod is ending, then tells Ray that the node drains, whereupon Serve ends the replicas on it as
gently as on a shutdown: live requests finish within the drain's time. Knows nothing of Kubernetes;
it takes every Serve replica that it sees for one of its node, which is so inside a container.
Units: seconds.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

__all__ = ["NotDrained", "drain_command", "leave", "main"]

_REPLICA = "ray::ServeReplica:"
_POLL_SECONDS = 0.25
_RAY_SECONDS = 30.0


class NotDrained(Exception):
    """Ray did not take the node out of service; the message is Ray's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook; the exit code is 1 when Ray did not drain or a replica stayed."""
    parser = argparse.ArgumentParser(description="Drain this container's Ray node.")
    parser.add_argument("--wait-seconds", type=float, required=True, help="before anything is done")
    parser.add_argument("--drain-seconds", type=float, required=True, help="most time to drain")
    options = parser.parse_args(arguments)
    time.sleep(options.wait_seconds)
    try:
        left = leave(options.drain_seconds, _drain, _replicas)
    except NotDrained as error:
        print(f"the node was not drained: {error}", file=sys.stderr)
        return 1
    if left:
        print(
            f"still running after {options.drain_seconds:g} s: {', '.join(left)}", file=sys.stderr
        )
    return 1 if left else 0


def leave(
    drain_seconds: float, drain: Callable[[float], None], replicas: Callable[[], list[str]]
) -> list[str]:
    """Have the node drained and wait until no replica is left; the names of those that are.

    Raises:
        NotDrained: from `drain`.
    """
    deadline = time.monotonic() + drain_seconds
    drain(drain_seconds)
    while (left := replicas()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return left


def drain_command(seconds: float) -> list[str]:
    """The command that has Ray drain the node it runs on, within that many seconds."""
    return [
        str(Path(sys.executable).with_name("ray")),
        "drain-node",
        # The reason that Ray never refuses. Serve ends a replica at once, and gently, when what is
        # left of the time is no more than the replica may take to end.
        "--reason=DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message=the pod is ending",
        f"--deadline-remaining-seconds={int(seconds)}",
    ]


def _drain(seconds: float) -> None:
    try:
        ran = subprocess.run(
            drain_command(seconds),
            capture_output=True,
            text=True,
            check=False,
            timeout=_RAY_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotDrained(str(error)) from error
    if ran.returncode:
        raise NotDrained((ran.stderr or ran.stdout).strip().rpartition("\n")[2])


def _replicas() -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            title = "".join(process.cmdline()[:1])
        except psutil.Error:
            continue  # it has ended, or is nobody of ours
        if title.startswith(_REPLICA):
            found.append(title.removeprefix(_REPLICA))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
