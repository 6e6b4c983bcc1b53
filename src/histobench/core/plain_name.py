"""Names that become files and folders: one part of a path, on any system."""

from __future__ import annotations

from histobench.core.errors import HistobenchError

#: A file system takes 255 bytes; the rest is for what is put around the name.
_LONGEST = 150


def check_plain_name(name: str, *, what: str) -> str:
    """The name, if a folder can be called so and lies where it was put; `what` begins the error.

    >>> check_plain_name("CRC-100K", what="dataset")
    'CRC-100K'
    """
    why = None
    if not name.strip():
        why = "is empty"
    elif any(sign in name for sign in "/\\"):
        why = "holds a path separator"
    elif any(ord(sign) < 32 or ord(sign) == 127 for sign in name):
        why = "holds a control character"
    elif name.strip(".") == "" or name != name.rstrip(". "):
        why = "ends in a dot or a space, or is nothing else"
    elif len(name.encode("utf-8", "surrogatepass")) > _LONGEST:
        why = f"is longer than {_LONGEST} bytes"
    if why is not None:
        shown = name if len(name) <= 60 else f"{name[:60]}..."
        raise HistobenchError(f"{what} {shown!r} cannot be the name of a folder: it {why}; give another name")
    return name
