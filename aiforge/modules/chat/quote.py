"""Text of others inside a frame of tags."""

from __future__ import annotations


def quote(text: str, tag: str) -> str:
    """`text` unable to close the `<tag>` that it is put into."""
    return text.replace(f"</{tag}", f"<\\/{tag}")
