"""Hosts made of network namespaces, joined by throttled links; needs root and the `ip` command of Linux."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CIDR", "INTERFACE", "throttled_hosts"]

CIDR, INTERFACE = "10.78.0.0/16", "wire"
BURST, QUEUE = "128kb", "1mb"  # more at once than any packet, before segmentation, holds; and a switch's buffer


@contextmanager
def throttled_hosts(count: int, rate: str) -> Iterator[list[str]]:
    """The names of `count` namespaces on one bridge, each of which sends and receives at most `rate` ("1gbit")."""
    hub = f"sparkdl-{os.getpid()}"
    names = [f"{hub}-{i}" for i in range(count)]
    try:
        _ip(f"netns add {hub}")
        _ip(f"-n {hub} link add bridge type bridge")
        _ip(f"-n {hub} link set bridge up")
        for i, name in enumerate(names):
            _ip(f"netns add {name}")
            _ip(f"-n {hub} link add port{i} type veth peer name {INTERFACE} netns {name}")
            _ip(f"-n {hub} link set port{i} master bridge up")
            _ip(f"-n {name} addr add 10.78.0.{i + 1}/16 dev {INTERFACE}")
            _ip(f"-n {name} link set {INTERFACE} up")
            _ip(f"-n {name} link set lo up")
            for where, device in ((name, INTERFACE), (hub, f"port{i}")):
                _run(f"tc -n {where} qdisc add dev {device} root tbf rate {rate} burst {BURST} limit {QUEUE}")
        yield names
    finally:
        for name in [*names, hub]:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(line: str) -> None:
    _run(f"ip {line}")


def _run(line: str) -> None:
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cannot make a network: {line}: {done.stderr.strip()}")
