"""Pictures for messages: every provider takes what `load_image` gives."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain
from histobench.mint.messages.parts import Image

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
    side, again and again, while the JPEG is, too. The same source gives the same bytes.
    """
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    name = "the picture" if isinstance(source, bytes) else str(source)
    try:
        data = source if isinstance(source, bytes) else read_plain(source)
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
    white = Pillow.new("RGBA", layer.size, "white")
    return Pillow.alpha_composite(white, layer).convert("RGB")


def _encoded(picture, side: int, format: str) -> bytes:  # type: ignore[no-untyped-def]
    from PIL import Image as Pillow

    longest = max(picture.size)
    if side < longest:
        size = [max(1, round(length * side / longest)) for length in picture.size]
        picture = picture.resize(size, Pillow.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format, **({"quality": _JPEG_QUALITY} if format == "JPEG" else {}))
    return buffer.getvalue()
