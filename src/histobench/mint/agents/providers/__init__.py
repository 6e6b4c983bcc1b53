"""Formats of providers: how a conversation is put into a request, and how an answer is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from histobench.mint.agents.providers.provider import ProviderAPI


def provider_format(name: str) -> type[ProviderAPI]:
    from histobench.mint.agents.providers.anthropic import AnthropicAPI
    from histobench.mint.agents.providers.gemini import GeminiAPI
    from histobench.mint.agents.providers.openai import ChatCompletionsAPI
    from histobench.mint.agents.providers.responses import ResponsesAPI

    own: tuple[type[ProviderAPI], ...] = (ResponsesAPI, AnthropicAPI, GeminiAPI)
    return next((form for form in own if form.format == name), ChatCompletionsAPI)
