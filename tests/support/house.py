"""A provider of one's own, as somebody would write it for their gateway."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.language_models import BaseChatModel, SimpleChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel

from aiforge.core.request import current_request
from aiforge.core.settings import AIForgeSettings


def gateway(settings: AIForgeSettings, model: str) -> BaseChatModel:
    return FakeListChatModel(responses=[f"{model} of the house"])


class Herald(SimpleChatModel):
    """Answers with what it can see of the turn that it is called for."""

    @property
    def _llm_type(self) -> str:
        return "herald"

    def _call(self, *_: Any, **__: Any) -> str:
        request = current_request()
        return json.dumps([request.message, request.conversation_id, request.turn_id, dict(request.metadata)])


def herald(settings: AIForgeSettings, model: str) -> BaseChatModel:
    return Herald()
