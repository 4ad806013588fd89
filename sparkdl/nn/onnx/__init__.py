"""Models in the ONNX format, written and read. Needs the extra `onnx`."""

from sparkdl.nn.onnx.read import Imported, from_onnx
from sparkdl.nn.onnx.write import to_onnx

__all__ = ["Imported", "from_onnx", "to_onnx"]
