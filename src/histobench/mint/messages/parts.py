"""The parts of a message, whichever provider wrote it.

A part that came from a provider keeps the provider's own form (`origin`): it goes back to that provider
exactly as it came, signatures and encrypted reasoning included, and another provider gets it made anew.
"""

from __future__ import annotations

import hashlib
import io
import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes
from histobench.core.plain_data import parse_json

Role = Literal["system", "user", "assistant"]
#: How a model's message ended: as usual, cut off at the limit of tokens, withheld by a filter, by a refusal.
Ending = Literal["", "length", "filtered", "refusal"]


@dataclass(frozen=True)
class MessageOrigin:
    """A part as its provider wrote it. `format` is the name of a `ProviderAPI`; `payload` is its JSON."""

    format: str
    payload: Any


@dataclass(frozen=True)
class Text:
    text: str
    origin: MessageOrigin | None = None


@dataclass(frozen=True)
class Image:
    """A picture as an encoded file; `load_image` makes one that every provider takes."""

    data: bytes
    media_type: str = "image/png"
    origin: MessageOrigin | None = None

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def base64(self) -> str:
        return b64encode(self.data).decode()

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"

    @property
    def file_name(self) -> str:
        return f"{self.sha256}.{self.media_type.partition('/')[2]}"


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants called; `arguments` is None where `written` is not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    written: str = ""
    origin: MessageOrigin | None = None

    @classmethod
    def parse(cls, id: str, name: str, written: str, origin: MessageOrigin | None = None) -> ToolCall:
        try:
            arguments = parse_json(written) if written.strip() else {}
        except (ValueError, RecursionError):
            arguments = None
        return cls(id, name, arguments if isinstance(arguments, dict) else None, written, origin)

    @property
    def arguments_text(self) -> str:
        return self.written or json.dumps(self.arguments or {}, ensure_ascii=False)


@dataclass(frozen=True)
class ToolResult:
    """What came of a call. `failed`: the text tells of an error."""

    call_id: str
    name: str
    text: str
    failed: bool = False
    images: tuple[Image, ...] = ()


@dataclass(frozen=True)
class Reasoning:
    """What the model thought before it answered; empty where the provider does not show it."""

    text: str = ""
    origin: MessageOrigin | None = None


@dataclass(frozen=True)
class Refusal:
    text: str
    origin: MessageOrigin | None = None


@dataclass(frozen=True)
class Unknown:
    """A part of a kind that is not known here: kept, and sent back to the provider that wrote it."""

    origin: MessageOrigin


Part: TypeAlias = Text | Image | ToolCall | ToolResult | Reasoning | Refusal | Unknown


@dataclass(frozen=True)
class Message:
    """One entry of a conversation.

    `content` is the message as text, for everybody who reads text alone (experts, checkers of recordings,
    tables). `parts` are given where there is more to it than that text.
    """

    role: Role
    content: str
    parts: tuple[Part, ...] = ()
    ending: Ending = field(default="", compare=False)

    @classmethod
    def of(cls, role: Role, parts: Iterable[Part]) -> Message:
        parts = tuple(parts)
        return cls(role, "".join(map(_as_text, parts)), parts)

    @property
    def as_parts(self) -> tuple[Part, ...]:
        return self.parts or (Text(self.content),)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def images(self) -> tuple[Image, ...]:
        shown = [(part,) if isinstance(part, Image) else getattr(part, "images", ()) for part in self.parts]
        return tuple(image for images in shown for image in images)


@dataclass(frozen=True)
class ToolSpec:
    """A function as it is sent to providers; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]

    def named(self, schema: str) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, schema: self.parameters}


def spoken(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text | Refusal))


def _as_text(part: Part) -> str:
    match part:
        case Text(text=text) | Refusal(text=text) | ToolResult(text=text):
            return text
        case Image():
            return "[picture]"
        case ToolCall():
            return f"[{part.name}({part.arguments_text})]"
        case _:
            return ""


FEEDBACK_HEADING = "\nExpert feedback:\n"


#: Longest side in pixels and size of the file; the narrowest of the documented limits of the providers.
MAX_SIDE = 1568
MAX_BYTES = 5_000_000 * 3 // 4  # in base64 a third more
#: Formats that every provider takes, by their names in Pillow.
MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
_JPEG_QUALITY = 90


def load_image(source: bytes | str | Path, *, max_side: int = MAX_SIDE, max_bytes: int = MAX_BYTES) -> Image:
    """A picture from a file or its bytes.

    A PNG, JPEG or WebP within both limits is sent byte for byte. Everything else is decoded, turned into RGB
    (a palette or transparency on white), made smaller with Lanczos so that its longer side is `max_side`,
    and written as PNG; as JPEG (quality 90) if that PNG is over `max_bytes`, and at three quarters of the
    side, repeatedly, while the JPEG is still over it. The same source gives the same bytes.
    """
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    name = "the picture" if isinstance(source, bytes) else str(source)
    try:
        data = source if isinstance(source, bytes) else read_bytes(source)
        with Pillow.open(io.BytesIO(data)) as picture:
            media_type = MEDIA_TYPES.get(picture.format or "")
            if media_type and len(data) <= max_bytes and max(picture.size) <= max_side:
                picture.load()  # a torn file is refused here, not by the provider
                return Image(data, media_type)
            rgb = _on_white(picture)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise HistobenchError(f"{name} cannot be read as a picture: {error}") from error
    side = min(max_side, max(rgb.size))
    encoded = _encoded(rgb, side, "PNG")
    if len(encoded) <= max_bytes:
        return Image(encoded, "image/png")
    while len(encoded := _encoded(rgb, side, "JPEG")) > max_bytes and side > 1:
        side = side * 3 // 4
    return Image(encoded, "image/jpeg")


def _on_white(picture: Any) -> Any:
    from PIL import Image as Pillow

    if picture.mode in ("RGB", "L"):
        return picture.convert("RGB")
    layer = picture.convert("RGBA")
    return Pillow.alpha_composite(Pillow.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _encoded(picture, side: int, format: str) -> bytes:  # type: ignore[no-untyped-def]
    from PIL import Image as Pillow

    longest = max(picture.size)
    if side < longest:
        size = [max(1, round(length * side / longest)) for length in picture.size]
        picture = picture.resize(size, Pillow.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format, **({"quality": _JPEG_QUALITY} if format == "JPEG" else {}))
    return buffer.getvalue()
