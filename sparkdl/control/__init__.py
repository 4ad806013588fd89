"""The driver's line to the workers while they train among themselves: reports one way, decisions the other."""

from sparkdl.control.coordinator import GONE, Coordinator, Report
from sparkdl.control.link import Link
from sparkdl.control.messages import Message

__all__ = ["GONE", "Coordinator", "Link", "Message", "Report"]
