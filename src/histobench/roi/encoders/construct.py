"""Makes a ready encoder from a zoo entry: network, weights, checks, identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.checkpoint import load_strictly, read_checkpoint, strip_shared_prefixes
from histobench.roi.encoders.checkpoint_files import checkpoint_sha256
from histobench.roi.encoders.families.family import family_of
from histobench.roi.encoders.hub_cache import other_revision
from histobench.roi.encoders.model_config import check_config
from histobench.roi.encoders.random_weights import SkipRandomInit, fill_with_seed
from histobench.roi.encoders.spec import EncoderSpec
from histobench.roi.encoders.weights import check_owner, find_weights, resolve_companion, resolve_weights
from histobench.roi.encoders.zoo import load_zoo
from histobench.roi.encoders.zoo_encoder import ImageTextEncoder, ZooEncoder

SEED = 0


def construct(
    spec: EncoderSpec,
    *,
    weights: str | None = None,
    allow_random: bool = False,
    allow_revision: bool = False,
    depth: int | None = None,
) -> BasePatchEncoder:
    """The encoder of `spec`, frozen, in eval mode, with what identifies its features in `.identity`."""
    if spec.source.kind == "project":
        return _freeze(_whole(spec), spec, {})
    checkpoint = _find(spec, weights, allow_random, allow_revision)
    if checkpoint is not None:
        check_owner(spec, checkpoint, load_zoo().values())
    with SkipRandomInit():
        network = family_of(spec).build(spec, depth=depth)
    if checkpoint is None:
        fill_with_seed(network, SEED)
        identity: dict[str, Any] = {"weights": f"random:{SEED}"}
    else:
        check_config(spec, checkpoint)
        load_weights(spec, network, checkpoint)
        identity = {"weights": f"sha256:{checkpoint_sha256(checkpoint)}"}
        revision = other_revision(spec, checkpoint) if allow_revision else ""
        if revision:
            identity["revision"] = revision
    if spec.text is None:
        return _freeze(ZooEncoder(spec, network), spec, identity)
    files = spec.text.files
    encoder = ImageTextEncoder(
        spec, network, lambda: {p.name: p for p in (resolve_companion(spec, checkpoint, f) for f in files)}
    )
    return _freeze(encoder, spec, identity)


def load_weights(spec: EncoderSpec, network: Any, checkpoint: Path) -> None:
    """Read a published checkpoint into the network, all of it."""
    state = read_checkpoint(checkpoint, container=spec.source.container)
    # A wrapper's prefix on every name would hide the published names from the renaming.
    state = family_of(spec).from_upstream(spec, network, strip_shared_prefixes(state))
    load_strictly(network, state, where=f"{spec.name}: {checkpoint}", ignore=spec.source.ignore)


def _find(spec: EncoderSpec, weights: str | None, allow_random: bool, allow_revision: bool) -> Path | None:
    if spec.source.kind == "seed":
        return None
    if allow_random:
        return find_weights(spec, weights)
    return resolve_weights(spec, weights, allow_revision=allow_revision)


def _whole(spec: EncoderSpec) -> BasePatchEncoder:
    encoder = family_of(spec).build(spec)
    if not isinstance(encoder, BasePatchEncoder):
        raise HistobenchError(f"zoo: {spec.name}: its family does not give a whole encoder")
    return encoder


def _freeze(encoder: BasePatchEncoder, spec: EncoderSpec, identity: dict[str, Any]) -> BasePatchEncoder:
    encoder.name = spec.full_name
    encoder.identity = {
        "encoder": spec.full_name,
        "family": spec.family,
        "arch": spec.arch,
        "kwargs": {key: spec.kwargs[key] for key in sorted(spec.kwargs)},
        "pooling": spec.pooling,
        "variant": spec.output or "default",
        "dim": spec.dim,
        "normalised": spec.normalised,
        **encoder.identity,
        **identity,
    }
    return encoder.eval().requires_grad_(False)
