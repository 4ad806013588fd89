"""On which address a rank listens. Host names are not asked: many hosts resolve their own to 127.0.1.1."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from sparkdl.comm.transport.options import TransportOptions
from sparkdl.errors import ConfigError

__all__ = ["family", "interfaces", "listen", "local_address"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
SIOCGIFCONF = 0x8912  # Linux: the IPv4 addresses of all interfaces, as entries of IFREQ_BYTES
IFREQ_BYTES, MAX_INTERFACES = 40, 1024
DISCARD_PORT = 9  # of the route question below; nothing is sent to it


def family(address: str) -> socket.AddressFamily:
    """The family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def local_address(options: TransportOptions) -> str:
    """The address of `interface`, or inside `cidr`, or on the way to `route_to`; else of the first interface up.

    Loopback is the last choice. ConfigError where the options name an interface or network that this host has not.
    """
    found = list(interfaces())
    if options.interface is not None:
        chosen = [address for name, address in found if name == options.interface]
        if not chosen:
            raise ConfigError(f"interface={options.interface!r} has no address on this host; it has {_listed(found)}")
        return str(chosen[0])
    if options.cidr is not None:
        network = ipaddress.ip_network(options.cidr, strict=False)
        chosen = [address for _, address in found if address in network]
        if not chosen:
            raise ConfigError(f"no address of this host lies in cidr={options.cidr!r}; it has {_listed(found)}")
        return str(chosen[0])
    if options.route_to is not None:
        return _toward(options.route_to)
    usable = [address for _, address in found if not address.is_loopback and not address.is_link_local]
    return str(usable[0]) if usable else "127.0.0.1"


def listen(options: TransportOptions) -> socket.socket:
    """A listening, non-blocking socket on this rank's address, on a free port or one of port_range."""
    address = local_address(options)
    first, last = options.port_range or (0, 0)
    ports = random.sample(range(first, last + 1), last + 1 - first)  # many ranks of one host rarely try the same one
    for port in ports:
        sock = socket.socket(family(address), socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a job just ended is free
            sock.bind((address, port))
            sock.listen(1024)
        except OSError as error:
            sock.close()
            if port == ports[-1]:
                raise OSError(f"cannot listen on {address}, ports {first} to {last}: {error}") from error
        else:
            sock.setblocking(False)
            return sock
    raise AssertionError("a port range is never empty")


def interfaces() -> Iterator[tuple[str, Address]]:
    """(interface, address) of this host: all IPv4 addresses first, in the kernel's order. (Linux; elsewhere none.)"""
    if not Path("/proc/net").exists():
        return
    answer = array.array("B", bytes(IFREQ_BYTES * MAX_INTERFACES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("iP", len(answer), answer.buffer_info()[0])
        length = struct.unpack("iP", fcntl.ioctl(sock, SIOCGIFCONF, request))[0]
    for entry in (answer[at : at + IFREQ_BYTES].tobytes() for at in range(0, length, IFREQ_BYTES)):
        yield entry[:16].split(b"\0")[0].decode(), ipaddress.IPv4Address(entry[20:24])
    table = Path("/proc/net/if_inet6")
    if table.exists():
        for line in table.read_text().splitlines():
            digits, *_, name = line.split()
            yield name, ipaddress.IPv6Address(bytes.fromhex(digits))


def _toward(peer: str) -> str:
    """The local address from which the kernel would send to peer (a name or an address)."""
    kind, _, _, _, target = socket.getaddrinfo(peer, DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as sock:
        sock.connect(target)
        return str(sock.getsockname()[0])


def _listed(found: list[tuple[str, Address]]) -> str:
    return ", ".join(f"{name} {address}" for name, address in found) or "none"
