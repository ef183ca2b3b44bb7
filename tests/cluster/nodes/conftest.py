"""Machines made of namespaces: what an operator does on one has its effect on others, over ssh.

All that is started on them ends with the one process that this starts, whatever happens.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

TREE = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("machines.sh")
ADDRESSES = ("192.0.2.10", "192.0.2.11")
"""Those of `cluster/deploy/local.yaml`, the head's first; the operator's is 192.0.2.1."""
HOME = "/tmp/home"
UNSHARE = ["unshare", "-n", "-u", "-m", "-p", "-f", "--kill-child", "--mount-proc"]
PATH = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Machine:
    """One of them, told by its first process."""

    first: psutil.Process

    def path(self, name: str) -> Path:
        """A file of its own, as this process can open it."""
        return Path(f"/proc/{self.first.pid}/root/{name}")

    def run(self, *command: str, seconds: float = 240) -> str:
        """What a command prints that is run at its home; it must succeed."""
        inside = ["nsenter", f"--target={self.first.pid}", "-m", "-u", "-i", "-n", "-p", "--"]
        clean = ["env", "-i", f"HOME={HOME}", f"PATH={PATH}", "LC_ALL=C.UTF-8", "TERM=dumb"]
        ran = subprocess.run(
            [*inside, *clean, "bash", "-c", 'cd && exec "$@"', "bash", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert ran.returncode == 0, (
            f"{command} ended with {ran.returncode}:\n{ran.stdout[-6000:]}{ran.stderr[-6000:]}"
        )
        return ran.stdout

    def runs(self, title: str) -> bool:
        """Whether it has a live process whose command line begins so."""
        return any(each.startswith(title) for each in self.titles())

    def titles(self) -> list[str]:
        """Command lines of its live processes, without the first and the sshd it came with."""
        ours = os.readlink(f"/proc/{self.first.pid}/ns/pid")
        found = []
        for process in psutil.process_iter():
            try:
                if os.readlink(f"/proc/{process.pid}/ns/pid") == ours:
                    found.append(" ".join(process.cmdline()))
            except (OSError, psutil.Error):
                continue  # it has ended
        return [
            title
            for title in found
            if title and "machines.sh" not in title and not title.startswith("sshd: ")
        ]


@dataclass(frozen=True)
class Machines:
    """The operator's, the cluster's head and its other node."""

    operator: Machine
    head: Machine
    node: Machine


def missing() -> str | None:
    """Why machines cannot be made here."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    tools = {"ip": "iproute2", "sshd": "openssh-server", "rsync": "rsync", "nsenter": "util-linux"}
    absent = [package for tool, package in tools.items() if shutil.which(tool, path=PATH) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    tried = subprocess.run(
        [*UNSHARE, "ip", "link", "add", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"this system lets no namespace be made: {tried.stderr}" if tried.returncode else None


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    if reason := missing():
        pytest.skip(reason)
    started = subprocess.Popen(
        [*UNSHARE, "bash", str(SCRIPT), str(TREE), sys.prefix, *ADDRESSES],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    family: list[psutil.Process] = []
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        [operator] = psutil.Process(started.pid).children()
        firsts = operator, *(first_at(operator, address) for address in ADDRESSES)
        yield Machines(*(Machine(each) for each in firsts))
    finally:
        if started.poll() is None:
            family = psutil.Process(started.pid).children(recursive=True)
        started.kill()  # `--kill-child` takes the first process along, and that all others
        started.communicate()
        _, left = psutil.wait_procs(family, timeout=20)
        assert not left


def first_at(operator: psutil.Process, address: str) -> psutil.Process:
    """The first process of the machine with that address."""
    [maker] = [each for each in operator.children() if each.cmdline()[-1] == address]
    [first] = maker.children()
    return first


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Waits for a condition, or fails and says what it was."""

    def wait(condition: Callable[[], object], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, condition
            time.sleep(0.1)

    return wait
