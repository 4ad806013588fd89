"""Hosts with slow links between them, made of network namespaces. Needs root and Linux's ip and tc."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["DRIVER", "Enter", "can_throttle", "throttled"]

DRIVER = "10.77.0.254"  # the address of this process on the bridge that joins the hosts
BURST_BYTES = 1 << 17  # more than the largest packet of a virtual link, or nothing would pass


@dataclass(frozen=True)
class Enter:
    """Puts a rank's process into the namespace of its host; pickles."""

    names: tuple[str, ...]

    def __call__(self, rank: int) -> None:
        with open(f"/run/netns/{self.names[rank]}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")


def can_throttle() -> bool:
    """Whether this process may make namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None


@contextmanager
def throttled(hosts: int, bits_per_s: float) -> Iterator[Enter]:
    """So many hosts on one switch, each of which sends at most bits_per_s."""
    tag = os.getpid()
    names = tuple(f"sparkdl-{tag}-{i}" for i in range(hosts))
    bridge = f"sdl{tag % 10**6}"
    try:
        _run(f"ip link add {bridge} type bridge", f"ip addr add {DRIVER}/24 dev {bridge}", f"ip link set {bridge} up")
        for i, name in enumerate(names):
            port = f"v{tag % 10**6}-{i}"
            _run(
                f"ip netns add {name}",
                f"ip link add {port} type veth peer name eth0 netns {name}",
                f"ip link set {port} master {bridge} up",
                f"ip -n {name} addr add 10.77.0.{i + 1}/24 dev eth0",
                f"ip -n {name} link set eth0 up",
                f"ip -n {name} link set lo up",
                f"ip netns exec {name} tc qdisc add dev eth0 root tbf rate {int(bits_per_s)}bit "
                f"burst {max(BURST_BYTES, int(bits_per_s / 8 / 250))} latency 200ms",
            )
        yield Enter(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True, text=True)
