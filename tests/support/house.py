"""A provider of one's own, as somebody would write it for their gateway."""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel

from aiforge.core.settings import AIForgeSettings


def gateway(settings: AIForgeSettings, model: str) -> BaseChatModel:
    return FakeListChatModel(responses=[f"{model} of the house"])
