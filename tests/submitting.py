"""What the processes of Spark that tests start have in common."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# They live for seconds: what the second compiler and a concurrent collector would do, they do not live to gain from.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment(**extra: str) -> dict[str, str]:
    """As a shell has it that knows which Python to use and where this package lies, and nothing of this session."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK", "PYTHON"))}
    own = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    options = dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS"), JVM)
    return kept | own | options | extra
