"""Messages as JSON, for results, journals and the cache of answers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from histobench.mint.messages.parts import (
    Image,
    Message,
    MessageOrigin,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)

IMAGES = "images"
#: The `format` of a part whose record this version does not know.
RECORD = "record"


def message_record(message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts:
        record["parts"] = [part_record(part) for part in message.parts]
    return record


def message_from_record(record: Mapping[str, Any]) -> Message:
    return Message(record["role"], record["content"], tuple(map(part_from_record, record.get("parts") or ())))


def picture_files(record: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for part in record.get("parts") or ():
        images = [part] if part.get("type") == "image" else part.get("images") or ()
        found += [Path(str(image["file"])).name for image in images if image.get("file")]
    return found


def part_record(part: Part, *, inline: bool = False) -> dict[str, Any]:
    match part:
        case Text() | Reasoning() | Refusal():
            record: dict[str, Any] = {"type": _KINDS[type(part)], "text": part.text}
        case Image():
            record = {"type": "image", "media_type": part.media_type, "file": part.file_name}
            if inline:
                record["data"] = base64.b64encode(part.data).decode()
        case ToolCall():
            record = {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
            if part.written:
                record["written"] = part.written
        case ToolResult():
            record = {"type": "tool_result", "call_id": part.call_id, "name": part.name, "text": part.text}
            record |= {"failed": True} if part.failed else {}
            if part.images:
                record["images"] = [part_record(image, inline=inline) for image in part.images]
            return record
        case Unknown(origin=MessageOrigin(format=format, payload=payload)) if format == RECORD:
            return dict(payload)
        case Unknown():
            record = {"type": "unknown"}
    if part.origin is not None:
        record["origin"] = {"format": part.origin.format, "payload": part.origin.payload}
    return record


def part_from_record(record: Mapping[str, Any]) -> Part:
    """The part of a record; one of a kind that a later version knows is kept as it is."""
    origin = MessageOrigin(**record["origin"]) if record.get("origin") else None
    match record.get("type"):
        case "text":
            return Text(record["text"], origin)
        case "reasoning":
            return Reasoning(record["text"], origin)
        case "refusal":
            return Refusal(record["text"], origin)
        case "image":
            return _image(record, origin)
        case "tool_call":
            written = record.get("written", "")
            return ToolCall(record["id"], record["name"], record["arguments"], written, origin)
        case "tool_result":
            result = record["call_id"], record["name"], record["text"], record.get("failed", False)
            return ToolResult(*result, tuple(map(_image, record.get("images") or ())))
        case "unknown" if origin is not None:
            return Unknown(origin)
        case _:
            return Unknown(MessageOrigin(RECORD, dict(record)))


def _image(record: Mapping[str, Any], origin: MessageOrigin | None = None) -> Image:
    return Image(base64.b64decode(record.get("data", "")), record["media_type"], origin)


_KINDS: dict[type, str] = {Text: "text", Reasoning: "reasoning", Refusal: "refusal"}
