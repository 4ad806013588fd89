"""Where code runs. `backends.spark` is imported by name, so that threads need no JVM."""

from sparkdl.backends.base import Backend, Group, Peers, Place, Remote, Seat, Shards, Slots
from sparkdl.backends.local import LocalBackend
from sparkdl.backends.processes import ProcessBackend

__all__ = ["Backend", "Group", "LocalBackend", "Peers", "Place", "ProcessBackend", "Remote", "Seat", "Shards", "Slots"]
