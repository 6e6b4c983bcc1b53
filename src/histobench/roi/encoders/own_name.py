"""The name of an encoder in a user's own file, and the one spelling under which its results appear."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from histobench.core.errors import HistobenchError, did_you_mean

ALIAS = re.compile(r"[A-Za-z0-9][\w.+-]*")
TIMM, HUGGING_FACE = "timm:", "hf:"
#: Features that another tool computed, as `NAME=features:PATH`; results call them `NAME@elsewhere`.
ELSEWHERE = "features:"
#: What results say of features from such a model, and of features that were not computed here.
UNCHECKED = "these features are not validated against the authors' code"
COMPUTED_ELSEWHERE = "computed elsewhere"
#: What may follow a model's name: `timm:vit_base_patch16_224@mean`.
MODEL_POOLINGS = ("pooled", "cls", "mean", "cls+mean")


def names_a_file(name: str) -> bool:
    """Whether an encoder is asked for as `my_file.py:MyEncoder`.

    >>> names_a_file("models/my_file.py:MyEncoder"), names_a_file("uni_v1")
    (True, False)
    """
    return ".py:" in name


def names_a_model(name: str) -> bool:
    """Whether an encoder is asked for as `timm:NAME` or `hf:OWNER/NAME`, perhaps as `own=timm:NAME`.

    >>> names_a_model("timm:resnet50"), names_a_model("own=hf:owner/name"), names_a_model("uni_v1")
    (True, True, False)
    """
    if combined_parts(name):
        return False
    if name.startswith((TIMM, HUGGING_FACE)):
        return True
    alias, equals, target = name.partition("=")
    return bool(equals) and "/" not in alias and target.startswith((TIMM, HUGGING_FACE))


def names_features(name: str) -> bool:
    """Whether features from elsewhere are asked for: `features:PATH` or `uni_v1=features:PATH`.

    >>> names_features("uni_v1=features:/data/h5_files"), names_features("uni_v1")
    (True, False)
    """
    head, found, _ = name.partition(ELSEWHERE)
    return bool(found) and (not head or (head.endswith("=") and "/" not in head))


def elsewhere_path(name: str) -> Path:
    return Path(name.partition(ELSEWHERE)[2]).expanduser()


def combined_parts(name: str) -> tuple[str, ...]:
    """The encoders of a combination; none where the name is that of one encoder.

    >>> combined_parts("uni_v1+virchow2"), combined_parts("uni_v1")
    (('uni_v1', 'virchow2'), ())
    >>> combined_parts("timm:test_vit@cls+mean+uni_v1")
    ('timm:test_vit@cls+mean', 'uni_v1')
    """
    if "=" in name or names_a_file(name) or names_features(name) or name.startswith(HUGGING_FACE + "/"):
        return ()
    parts: list[str] = []
    for piece in name.split("+"):
        if parts and piece == "mean" and parts[-1].endswith("@cls"):
            parts[-1] += "+mean"
        else:
            parts.append(piece.strip())
    return tuple(parts) if len(parts) > 1 and all(parts) else ()


def is_computed(name: str) -> bool:
    """Whether an encoder's features are computed here from images, and not read or put together.

    >>> is_computed("uni_v1"), is_computed("uni_v1+virchow2"), is_computed("features:h5_files")
    (True, False, False)
    """
    return not names_features(name) and not combined_parts(name)


def is_unchecked(identity: object) -> bool:
    """Whether an encoder, or a part of a combination, is outside the zoo, by what its features say of it.

    >>> is_unchecked({"parts": [{"encoder": "uni_v1"}, {"encoder": "timm:resnet50", "unchecked": True}]})
    True
    """
    if not isinstance(identity, dict):
        return False
    parts = identity.get("parts")
    return bool(identity.get("unchecked")) or any(map(is_unchecked, parts if isinstance(parts, list) else ()))


def split_model(name: str) -> tuple[str, str, str, str]:
    """The kind, the model, the revision and the pooling of `hf:OWNER/NAME@revision@pooling`.

    >>> split_model("timm:vit_base_patch16_224@mean"), split_model("hf:owner/name@v2")
    (('timm:', 'vit_base_patch16_224', '', 'mean'), ('hf:', 'owner/name', 'v2', ''))
    """
    kind = TIMM if name.startswith(TIMM) else HUGGING_FACE
    place, *marks = name.removeprefix(kind).split("@")
    pooling = marks.pop() if marks and (marks[-1] in MODEL_POOLINGS or kind == TIMM) else ""
    if pooling and pooling not in MODEL_POOLINGS:
        raise HistobenchError(
            f"{name}: {pooling!r} is not a pooling; {did_you_mean(pooling, MODEL_POOLINGS)}"
        )
    if not place or len(marks) > 1 or (kind == TIMM and marks):
        raise HistobenchError(f"{name}: expected timm:NAME[@pooling] or hf:OWNER/NAME[@revision][@pooling]")
    return kind, place, marks[0] if marks else "", pooling


def split_alias(name: str) -> tuple[str, str]:
    """The name that the user gives an encoder of a file, and the file and class.

    >>> split_alias("hist=my_file.py:ColourHist"), split_alias("my_file.py:ColourHist")
    (('hist', 'my_file.py:ColourHist'), ('', 'my_file.py:ColourHist'))
    """
    alias, equals, target = name.partition("=")
    if not equals or not (names_a_file(target) or names_a_model(target) or names_features(target)):
        return "", name
    # A folder may be called `lr=0.1`.
    if "/" in alias or Path(name.rpartition(":")[0]).expanduser().is_file():
        return "", name
    if not ALIAS.fullmatch(alias):
        raise HistobenchError(
            f"{name}: {alias!r} cannot be the name of an encoder: it must start with a letter or digit and "
            f"may contain only letters, digits and . _ + -; write for instance own={target}"
        )
    return alias, target


def label_of(name: str) -> str:
    """What an encoder is called in file names, folders and tables.

    >>> label_of("models/my_file.py:Hist"), label_of("own=my_file.py:Hist"), label_of("virchow2@cls")
    ('Hist', 'own', 'virchow2@cls')
    >>> label_of("timm:resnet50"), label_of("hf:owner/name@v2"), label_of("hf:/data/models/vit")
    ('timm_resnet50', 'hf_owner_name@v2', 'hf_vit')
    >>> label_of("features:/data/features_uni_v1"), label_of("uni=features:h5_files")
    ('uni_v1@elsewhere', 'uni@elsewhere')
    """
    alias, target = split_alias(name)
    if parts := combined_parts(target):
        return "+".join(map(label_of, parts))
    if names_features(target):
        stem = Path(target.removeprefix(ELSEWHERE).rstrip("/")).name
        stem = stem if "." not in stem else stem.rpartition(".")[0]
        return f"{alias or re.sub('^(slide_)?features_', '', stem) or stem}@elsewhere"
    if not alias and names_a_model(target):
        kind, place, revision, pooling = split_model(target)
        place = place.rstrip("/")
        if kind == HUGGING_FACE and (place.startswith((".", "/", "~")) or place.count("/") != 1):
            place = Path(place).name
        marks = "".join(f"@{mark}" for mark in (revision, pooling) if mark)
        return re.sub(r"[/\\:]", "_", f"{kind}{place}{marks}")
    return alias or (target.rpartition(":")[2] if names_a_file(target) else name)


def check_file(name: str) -> None:
    """Raise when the file of `my_file.py:MyEncoder` is not there, or surely does not define the class."""
    file, _, attribute = split_alias(name)[1].rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise HistobenchError(f"the encoder file {path} does not exist")
    text = path.read_text(encoding="utf-8", errors="replace")
    if not re.search(rf"\b{re.escape(attribute)}\b|import \*|globals", text):
        classes = re.findall(r"^(?:class|def) (\w+)", text, re.MULTILINE)
        raise HistobenchError(f"{path} has no {attribute!r}; {did_you_mean(attribute, classes)}")


def check_labels(names: Iterable[str]) -> None:
    """Raise when two encoders that are asked for together would share one label, and so one file."""
    seen: dict[str, str] = {}
    for name in names:
        # Some file systems do not tell capitals apart.
        other = seen.setdefault(label_of(name).casefold(), name)
        if other != name:
            one, two = sorted((other, name), key=names_a_file)
            raise HistobenchError(
                f"{one} and {two} would both be called {label_of(two)} in files and tables; "
                f"give one of them another name: {label_of(two)}2={split_alias(two)[1]}"
            )
