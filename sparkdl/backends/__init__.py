"""Where code runs. `backends.spark` is imported by name, so that threads need no JVM."""

from sparkdl.backends.base import Backend, Remote, Shards
from sparkdl.backends.local import LocalBackend

__all__ = ["Backend", "LocalBackend", "Remote", "Shards"]
