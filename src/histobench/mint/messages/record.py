"""Messages as JSON, for results, journals and the cache of answers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from histobench.core.files import read_bytes
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

#: The folder of pictures beside a `results.jsonl`.
IMAGES = "images"
#: The `format` of a part whose record this version does not know.
RECORD = "record"


def message_record(message: Message) -> dict[str, Any]:
    """`role` and `content` as published; `parts` where there are any, pictures by their files."""
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts:
        record["parts"] = [part_record(part) for part in message.parts]
    return record


def message_from_record(record: Mapping[str, Any], load: Callable[[str], bytes] | None = None) -> Message:
    """The message of a record; `load` gives the picture in a file of that name."""
    parts = tuple(part_from_record(part, load) for part in record.get("parts") or ())
    return Message(record["role"], record["content"], parts)


def picture_files(record: Mapping[str, Any]) -> list[str]:
    """The names of the files that keep the pictures of a message, those of its results included.

    >>> picture_files({"role": "user", "content": "?", "parts": [{"type": "image", "file": "a.png"}]})
    ['a.png']
    """
    found: list[str] = []
    for part in record.get("parts") or ():
        images = [part] if part.get("type") == "image" else part.get("images") or ()
        found += [Path(str(image["file"])).name for image in images if image.get("file")]
    return found


def load_from(folder: Path) -> Callable[[str], bytes]:
    """Reads pictures that lie beside the results in `folder`."""
    return lambda name: read_bytes(folder / IMAGES / Path(name).name)


def part_record(part: Part, *, inline: bool = False) -> dict[str, Any]:
    """A part as JSON.

    >>> part_record(ToolCall("c1", "look", {}))
    {'type': 'tool_call', 'id': 'c1', 'name': 'look', 'arguments': {}}
    """
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


def part_from_record(record: Mapping[str, Any], load: Callable[[str], bytes] | None = None) -> Part:
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
            return _image(record, load, origin)
        case "tool_call":
            written = record.get("written", "")
            return ToolCall(record["id"], record["name"], record["arguments"], written, origin)
        case "tool_result":
            images = [_image(image, load, None) for image in record.get("images") or ()]
            result = record["call_id"], record["name"], record["text"], record.get("failed", False)
            return ToolResult(*result, tuple(images))
        case "unknown" if origin is not None:
            return Unknown(origin)
        case _:
            return Unknown(MessageOrigin(RECORD, dict(record)))


def _image(
    record: Mapping[str, Any], load: Callable[[str], bytes] | None, origin: MessageOrigin | None
) -> Image:
    if "data" in record:
        data = base64.b64decode(record["data"])
    else:
        data = load(record["file"]) if load is not None else b""
    return Image(data, record["media_type"], origin)


_KINDS: dict[type, str] = {Text: "text", Reasoning: "reasoning", Refusal: "refusal"}
