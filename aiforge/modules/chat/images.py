"""Pictures that tools loaded, on their way to the model.

A tool's result is text in OpenAI's form, so the picture follows in a message of the user's. It is put
there when a request is made, and only for the requests of its turn: what memory and stores keep is the
result's text, and the model can look again.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from aiforge.modules.chat.prompts import IMAGES_LOADED
from aiforge.tools.tool import Image


def described(image: Image) -> str:
    """The result of the call that loaded it."""
    return f"{image.name}: {image.media_type}, {len(image.data)} bytes; the image follows"


def with_images(messages: list[dict[str, Any]], images: Mapping[str, Image]) -> list[dict[str, Any]]:
    """`messages` with each round's images behind its results; `images` are by the id of their call."""
    if not images:
        return messages
    shown: list[dict[str, Any]] = []
    loaded: list[Image] = []
    for message in messages:
        if message["role"] != "tool":
            shown += _shown(loaded)
            loaded = []
        elif message["tool_call_id"] in images:
            loaded.append(images[message["tool_call_id"]])
        shown.append(message)
    return shown + _shown(loaded)


def _shown(images: Sequence[Image]) -> list[dict[str, Any]]:
    if not images:
        return []
    text = IMAGES_LOADED.format(names=", ".join(image.name for image in images))
    pictures = [{"type": "image_url", "image_url": {"url": _data_url(image)}} for image in images]
    return [{"role": "user", "content": [{"type": "text", "text": text}, *pictures]}]


def _data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{b64encode(image.data).decode()}"
