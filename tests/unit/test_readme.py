"""The README's snippets run: every fenced block marked `python run`, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(text: str) -> list[str]:
    """The marked blocks, each preceded by as many blank lines as stand above it, so that tracebacks point home."""
    return ["\n" * text.count("\n", 0, m.start(1)) + m.group(1) for m in FENCE.finditer(text)]


def test_only_marked_blocks_are_found_at_their_lines() -> None:
    text = "# x\n```python run\na = 1\n```\n```python\nb = 2\n```\n```bash\nc\n```\n```python run\nd = 3\n```\n"
    assert snippets(text) == ["\n\na = 1\n", "\n" * 11 + "d = 3\n"]


@pytest.mark.usefixtures("spark")
def test_readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    found = snippets(readme.read_text(encoding="utf-8"))
    assert found, "README.md has no block that starts with ```python run"
    (tmp_path / "data").symlink_to(ROOT / "data")  # snippets read the shipped data and write beside it
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for snippet in found:
        exec(compile(snippet, str(readme), "exec"), namespace)
