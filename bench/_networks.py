"""Hosts made of network namespaces, joined by throttled links; needs root and the `ip` command of Linux."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CIDR", "DRIVER", "INTERFACE", "Enter", "can_throttle", "throttled_hosts"]

# Of this process and those that it starts: benchmarks side by side must not share addresses.
NET = os.environ.setdefault("SPARKDL_BENCH_NET", f"10.{64 + os.getpid() % 128}")
CIDR, INTERFACE = f"{NET}.0.0/16", "wire"
DRIVER = f"{NET}.255.254"  # this process, on the same bridge
BURST, QUEUE = "128kb", "1mb"  # more at once than any packet, before segmentation, holds; and a switch's buffer


@dataclass(frozen=True)
class Enter:
    """Puts the process of rank r into the r-th namespace; pickles."""

    names: tuple[str, ...]

    def __call__(self, rank: int) -> None:
        with open(f"/run/netns/{self.names[rank]}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")


def can_throttle() -> bool:
    """Whether this process may make such hosts."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("tc") is not None


@contextmanager
def throttled_hosts(count: int, rate: str, queue: str = QUEUE, tcp: str | None = None) -> Iterator[list[str]]:
    """The names of `count` namespaces on one bridge, each of which sends and receives at most `rate` ("1gbit").

    This process is on the bridge too, at DRIVER, and not throttled. tcp: the congestion control of the namespaces.
    """
    hub = f"sparkdl-{os.getpid()}"
    port = f"sdl{os.getpid()}"
    names = [f"{hub}-{i}" for i in range(count)]
    try:
        _ip(f"netns add {hub}")
        _ip(f"-n {hub} link add bridge type bridge")
        _ip(f"-n {hub} link set bridge up")
        _ip(f"link add {port} type veth peer name driver netns {hub}")
        _ip(f"-n {hub} link set driver master bridge up")
        _ip(f"addr add {DRIVER}/16 dev {port}")
        _ip(f"link set {port} up")
        for i, name in enumerate(names):
            _ip(f"netns add {name}")
            _ip(f"-n {hub} link add port{i} type veth peer name {INTERFACE} netns {name}")
            _ip(f"-n {hub} link set port{i} master bridge up")
            _ip(f"-n {name} addr add {NET}.0.{i + 1}/16 dev {INTERFACE}")
            _ip(f"-n {name} link set {INTERFACE} up")
            _ip(f"-n {name} link set lo up")
            for where, device in ((name, INTERFACE), (hub, f"port{i}")):
                _run(f"tc -n {where} qdisc add dev {device} root tbf rate {rate} burst {BURST} limit {queue}")
            if tcp is not None:
                _run(f"ip netns exec {name} sysctl -qw net.ipv4.tcp_congestion_control={tcp}")
        yield names
    finally:
        # A namespace takes its devices with it in its own time; the next one's may have the same name.
        subprocess.run(["ip", "link", "del", port], check=False, stderr=subprocess.DEVNULL)
        for name in [*names, hub]:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(line: str) -> None:
    _run(f"ip {line}")


def _run(line: str) -> None:
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cannot make a network: {line}: {done.stderr.strip()}")
