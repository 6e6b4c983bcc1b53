"""Encoders of someone else's job made ready in this process, with the decisions that were made there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from histobench.core.devices import resolve_device
from histobench.core.progress import Progress
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.encoders.own_encoder import check_same
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.cache.row_cache import RowCache
from histobench.roi.features.inference.device_runner import DeviceRunner, EncoderState
from histobench.roi.features.inference.shards import Shard
from histobench.roi.features.loading.loader import Pool, open_pool
from histobench.roi.features.loading.loading_pool import ThreadPool
from histobench.roi.features.settings import EncoderRecipe
from histobench.roi.options import Settings


class PlannedRunner:
    """Stays open for any number of shards; `close` ends its loading workers."""

    def __init__(
        self,
        recipes: Sequence[EncoderRecipe],
        descriptions: Sequence[Mapping[str, Any]],
        records: Sequence[dict[str, Any]],
        *,
        root: Path,
        settings: Settings,
        workers: int,
        threads: int,
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self._settings = settings
        self.states = []
        for recipe, description, record in zip(recipes, descriptions, records, strict=True):
            encoder = recipe.build()
            check_same(encoder, description["identity"])
            cache = RowCache(root, description)
            self.states.append(EncoderState(encoder, description["precision"], cache, record))
        self.device = resolve_device(settings.device)
        self._runner = DeviceRunner(self.states, settings, self.device, [0] * len(self.states))
        plain = all(isinstance(transform, TransformSpec) for transform in self._runner.transforms)
        self._pool: Pool = open_pool(workers) if plain else ThreadPool(workers)

    @property
    def seconds(self) -> list[float]:
        """How long the device has spent in each encoder so far."""
        return [forward.seconds for forward in self._runner.forwards]

    def run(
        self,
        shards: Sequence[Shard],
        refs: Mapping[bytes, ImageRef],
        *,
        known_bad: bool,
        progress: Progress,
    ) -> dict[bytes, str]:
        """Compute shards into the caches; the images that could not be used, and why."""
        stop = self._settings.on_bad_image == "stop"
        return self._runner.run(
            shards, refs, self._pool, stop_at_bad=stop, known_bad=known_bad, progress=progress
        )

    def close(self) -> None:
        """Let go of the workers and of their memory."""
        self._runner.close()
        self._pool.close()
