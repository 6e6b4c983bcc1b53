"""Names for results that change exactly when the results would."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from histobench.core.version import __version__, installed_version
from histobench.roi.encoders.own_name import names_a_file, split_alias
from histobench.roi.encoders.transform import TransformSpec

if TYPE_CHECKING:
    from histobench.roi.encoders.base import BasePatchEncoder

PACKAGES = ("torch", "timm", "numpy", "pillow")
#: More packages that networks of the zoo are made with.
LIBRARIES = ("torchvision", "transformers", "open_clip_torch", "safetensors")


def versions(*more: str) -> dict[str, str]:
    found = {"histobench": __version__, "python": platform.python_version()}
    installed = ((package, installed_version(package)) for package in (*PACKAGES, *more))
    return found | {package: number for package, number in installed if number is not None}


def fingerprint(value: Any) -> str:
    """The sha256 of a plain value, whatever the order of its keys.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def describe_encoder(encoder: BasePatchEncoder, *, precision: str, numerics: str) -> dict[str, Any]:
    """What the features of an image depend on besides the image, as plain values."""
    identity = dict(encoder.identity)
    if "weights" not in identity:
        from histobench.roi.encoders.any_model import identity_of_object

        identity |= identity_of_object(encoder)
    return {
        "encoder": short_name(encoder.name or type(encoder).__name__),
        "identity": json.loads(json.dumps(identity, default=str)),
        "transform": describe_transform(encoder.eval_transforms),
        "dim": int(encoder.embed_dim),
        "precision": precision,
        "numerics": numerics,
    }


def short_name(name: str) -> str:
    """An encoder's name in the cache: a user's file is called by its last name, wherever it lies.

    >>> short_name("hist=models/my_file.py:ColourHist"), short_name("uni_v1")
    ('my_file.py:ColourHist', 'uni_v1')
    """
    target = split_alias(name)[1]
    return target.rpartition("/")[2] if names_a_file(target) else name


def describe_transform(transform: Any) -> Any:
    """A transform as plain values; an encoder's own callable is known by its text."""
    if isinstance(transform, TransformSpec):
        facts = asdict(transform)
        if not transform.squash:
            del facts["squash"]  # features from before this field keep their name
        return json.loads(json.dumps(facts))
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(transform))
    if inspect.isfunction(transform) or inspect.ismethod(transform):
        with contextlib.suppress(OSError, TypeError):  # defined at a prompt: its name must do
            text += "\n" + inspect.getsource(transform)
    return text


def feature_set_fingerprint(encoder: str, keys: Iterable[bytes]) -> str:
    digest = hashlib.sha256(encoder.encode())
    for key in keys:
        digest.update(key)
    return digest.hexdigest()
