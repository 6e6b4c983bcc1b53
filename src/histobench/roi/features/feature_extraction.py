"""Images to feature files: the one function that the command line and Python users call."""

from __future__ import annotations

import logging
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.core.claim import exclusive, holder_of
from histobench.core.devices import cpu_kind, resolve_device
from histobench.core.errors import DiskFullError, HistobenchError, InterruptedWorkError, error_text
from histobench.core.files import check_writable
from histobench.core.folders import cache_dir, local_dir
from histobench.core.progress import Progress, Silent
from histobench.core.text import check_plain_name
from histobench.roi.data.check import copies_in
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.construct import StandIn
from histobench.roi.encoders.own_name import check_labels
from histobench.roi.encoders.registry import EncoderRecipe, check_distinct_weights, require_encoders
from histobench.roi.features.assemble import file_name, model_name, size_of
from histobench.roi.features.cache.content_hashes import Keys, take_inventory
from histobench.roi.features.cache.row_cache import RowCache, is_cached
from histobench.roi.features.fingerprint import (
    LIBRARIES,
    describe_encoder,
    feature_set_fingerprint,
    fingerprint,
    versions,
)
from histobench.roi.features.inference.device_runner import PRECISION, DeviceRunner, EncoderState, make_ready
from histobench.roi.features.inference.forward import resolve_precision
from histobench.roi.features.inference.shards import Shard, plan_shards, shard_size
from histobench.roi.features.inference.tuning import LARGEST, cpu_batch
from histobench.roi.features.loading.loader import open_pool, useful_workers
from histobench.roi.features.multi_device import DeviceProcess, Share
from histobench.roi.features.recheck import check_batch, compare_again, images_to_recheck, sample
from histobench.roi.features.shard_plan import (
    VERSIONS,
    Extraction,
    ExtractionPlan,
    PlannedEncoder,
    problems_of,
    write_splits,
)
from histobench.roi.options import Settings

log = logging.getLogger(__name__)

#: Images of the job on which a low precision is tried first.
TRIAL_IMAGES = 32
#: Cached images that are computed again without a word.
FEW = 32


def extract(
    dataset: RoiDataset,
    encoders: BasePatchEncoder | EncoderRecipe | Sequence[BasePatchEncoder | EncoderRecipe],
    save_dir: str | Path,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> list[Extraction]:
    """Write the features of every split by every encoder to `save_dir`; nothing known is computed again.

    `settings` are the fields of `Settings`.
    `recheck` cached images, drawn at random, are computed again and compared; if one differs, the cached set
    is discarded. `auto` takes 8, and of a user's own encoder as many as find a change of 1 % of the images
    with a chance of 95 % (300 of a large set).
    `no_cache` neither uses cached features nor keeps any.

    Each image is decoded once for all encoders with the same resizing. Rows go to the cache
    (see `core.folders.cache_dir`) as they are made, so that a killed run goes on where it
    was when the same call is made again, and gives the same files bit for bit.
    """
    chosen = Settings(**settings)
    given = [encoders] if isinstance(encoders, BasePatchEncoder | EncoderRecipe) else list(encoders)
    if not given:
        raise HistobenchError("no encoder is given")
    if not any(dataset.splits.values()):
        raise HistobenchError(f"{dataset.name} has no images")
    if len(chosen.devices) > 1 and not all(isinstance(item, EncoderRecipe) for item in given):
        raise HistobenchError("several devices need encoders by name: give an EncoderRecipe")
    check_writable(Path(save_dir), "feature files")  # now, not after hours of work
    recipes = [item for item in given if isinstance(item, EncoderRecipe)]
    require_encoders({item.name: item.unresolved() for item in recipes})
    check_labels(item.name for item in recipes)
    for weights in {recipe.weights for recipe in recipes}:
        check_distinct_weights((recipe.name for recipe in recipes if recipe.weights == weights), weights)
    save_dir, root = Path(save_dir), cache_dir()
    with ExitStack() as stack:
        if chosen.no_cache:
            save_dir.mkdir(parents=True, exist_ok=True)
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".no-cache-", dir=save_dir)))
        job = Extractor(dataset, given, save_dir, chosen, root=root, progress=progress or Silent())
        stack.callback(job.close)
        plan = job.plan()
        bad = job.compute(plan.shards)
        seconds = job.runner.seconds if plan.shards else {}
        job.close()  # others need not wait while files are written
        problems = problems_of(plan.contents, plan.unreadable, bad)
        computed = [
            {key for shard in plan.shards if place in shard.encoders for key in shard.keys}
            for place in range(len(plan.encoders))
        ]
        return [
            replace(
                written,
                computed=len(
                    computed[place].intersection(
                        key for image, key in plan.contents.of(written.split) if image not in problems
                    )
                ),
                forward_seconds=seconds.get(place, 0.0),
            )
            for place, (planned, state) in enumerate(zip(plan.encoders, job.states, strict=True))
            for written in write_splits(
                planned, state.cache, plan.contents, problems, save_dir=save_dir, settings=chosen
            )
        ]


class Extractor:
    """An extraction that this process plans, with the networks that compute it if `keep`."""

    def __init__(
        self,
        dataset: RoiDataset,
        given: Sequence[BasePatchEncoder | EncoderRecipe],
        save_dir: Path,
        settings: Settings,
        *,
        root: Path,
        progress: Progress,
        keep: bool = True,
        tolerant: bool = False,
    ) -> None:
        self.dataset = dataset
        self.given = given
        self.save_dir = save_dir
        self.settings = settings
        self.progress = progress
        self.device, *_ = map(resolve_device, settings.devices)
        self.root = root
        #: Encoders by their place in the plan, if they are kept.
        self.states: list[EncoderState] = []
        self._keep, self._tolerant = keep, tolerant
        self._failures: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._open = ExitStack()
        self._ready: DeviceRunner | None = None

    def close(self) -> None:
        """End the loading workers, and let other runs compute with the same encoders."""
        self._open.close()

    def plan(self) -> ExtractionPlan:
        """Everything but the computation: what is missing, cut into shards, and every decision about it."""
        check_plain_name(self.dataset.name.replace("/", "_").replace("\\", "_"), what="dataset")
        on_cpu = torch.device(self.device).type == "cpu"
        workers = useful_workers(self.settings.num_workers, on_cpu=on_cpu)
        self._pool = open_pool(-(-workers // len(self.settings.devices)), polite=on_cpu)
        self._open.callback(self._pool.close)
        # A database is no file for several machines; what it remembers costs time to find out, no more.
        memory = self.root if self.settings.no_cache else local_dir()
        # Hashing needs the disk and the workers, building the networks needs this process: both at once.
        with ThreadPoolExecutor(1, thread_name_prefix="histobench-inventory") as background:
            hashing = background.submit(take_inventory, self.dataset, self._pool, memory)
            made: Iterable[BasePatchEncoder | HistobenchError] = map(self._made, self.given)
            if self._keep:
                made = list(made)
            self._inventory = inventory = hashing.result()
        #: The readable images of the dataset, each once.
        self._keys = inventory.refs.distinct
        self._images = feature_set_fingerprint("", inventory.refs.in_order())
        self._open.callback(inventory.close)
        for text in copies_in(self.dataset, inventory.contents.copies):
            log.warning("%s: %s; `histobench data check` lists them", self.dataset.name, text)
        found = self._checked(made)
        if self._keep:
            found = iter(kept := list(found))
            self._wait_for_others([state for _, state in kept])
        planned: list[PlannedEncoder] = []
        wanted = np.zeros(len(self._keys), np.bool_)

        def missing() -> Iterator[Keys]:
            for item, state in found:
                with self._noting_failures(item):
                    lacks = self._lacks(state.cache)
                    lacking = self._keys if lacks.all() else Keys(self._keys.data[lacks])
                    if len(lacking):
                        some = lacking[:: max(1, len(lacking) // TRIAL_IMAGES)][:TRIAL_IMAGES]
                        images = [inventory.refs[key] for key in some]
                        make_ready(state, self.settings, self.device, len(lacking), images)
                    planned.append(PlannedEncoder.of(item, state))
                    np.logical_or(wanted, lacks, out=wanted)
                    if self._keep:
                        self.states.append(state)
                    else:
                        state.forward = None
                    yield lacking

        asked = self.settings.batch_size
        batch = asked if isinstance(asked, int) else cpu_batch() if on_cpu else LARGEST
        shards = plan_shards(missing(), shard_size(batch, on_cpu=on_cpu))
        if planned and inventory.refs and not shards:
            self.progress.say(f"{self.dataset.name}: all features were in the cache; nothing to compute")
        elif planned and (known := len(inventory.refs) - int(wanted.sum())):
            self.progress.say(
                f"{self.dataset.name}: {known} of {len(inventory.refs)} images were in the cache"
            )
        self.planned = ExtractionPlan(
            tuple(planned),
            self._failures,
            tuple(shards),
            inventory.refs,
            inventory.contents,
            inventory.unreadable,
            self.device,
            torch.get_num_threads(),
        )
        return self.planned

    def _made(self, item: BasePatchEncoder | EncoderRecipe) -> BasePatchEncoder | HistobenchError:
        """The encoder, or why it cannot be made; without its network, where that may not be needed."""
        if isinstance(item, BasePatchEncoder):
            return item
        try:
            if self.settings.recheck == "auto" and not self.settings.no_cache:
                encoder = item.stand_in()
                if encoder and any(is_cached(self.root, each) for each in self._named(encoder)[1:]):
                    return encoder
            return item.build()
        except HistobenchError as error:
            return error
        except OSError as error:
            return HistobenchError(error_text(error))

    @contextmanager
    def _noting_failures(self, item: BasePatchEncoder | EncoderRecipe) -> Iterator[None]:
        try:
            yield
        except (HistobenchError, OSError) as error:
            if not self._tolerant or isinstance(error, DiskFullError):
                raise
            self._failures[item.name] = str(error)

    def _checked(
        self, made: Iterable[BasePatchEncoder | HistobenchError]
    ) -> Iterator[tuple[BasePatchEncoder | EncoderRecipe, EncoderState]]:
        """The encoders that can be used, each with the rows that can be."""
        refs = self._inventory.refs.values()
        for item, encoder in zip(self.given, made, strict=True):
            with self._noting_failures(item):
                if isinstance(encoder, HistobenchError):
                    raise encoder
                check_batch(encoder, refs, self.device)
                state = self._state(encoder)
                # It serves if all images are cached, and were compared with the same libraries before.
                is_known = state.cache.decision(VERSIONS) == versions(*LIBRARIES)
                if isinstance(encoder, StandIn) and (not is_known or self._lacks(state.cache).any()):
                    assert isinstance(item, EncoderRecipe)
                    state = self._state(item.build())
                self._check_name(state)
                yield item, self._trusted(state)

    def _state(self, encoder: BasePatchEncoder) -> EncoderState:
        precision, exact, fast = self._named(encoder)
        kind = torch.device(self.device).type
        cache = self._cache(exact if self.settings.is_exact(precision) else fast)
        if precision == "fp32" and self.settings.compile == "auto" and is_cached(self.root, exact):
            known = self._cache(exact)  # serves, if it has all images
            cache = cache if self._lacks(known).any() else known
        job = fingerprint([self._images, kind, str(self.settings.batch_size), self.settings.compile])
        name = f"jobs/{job}"
        return EncoderState(encoder, precision, cache, cache.decision(PRECISION) | cache.decision(name), name)

    def _named(self, encoder: BasePatchEncoder) -> tuple[str, dict[str, Any], dict[str, Any]]:
        precision = resolve_precision(self.settings.precision, encoder.precision, self.device)
        kind = torch.device(self.device).type
        exact = describe_encoder(encoder, precision=precision, numerics=f"exact on {kind}")
        return precision, exact, {**exact, "numerics": "fast"}

    def _cache(self, description: Mapping[str, Any]) -> RowCache:
        cache = RowCache(self.root, description)
        return _of_this_cpu(cache) if torch.device(self.device).type == "cpu" else cache

    def _wait_for_others(self, states: Sequence[EncoderState]) -> None:
        """Wait for other runs that compute with the same encoders: what they make need not be made twice."""
        lacking = [state for state in states if self._lacks(state.cache).any()]
        # One lock per encoder, for the same one may be asked for twice, in an order that all runs keep.
        for _, state in sorted({state.cache.fingerprint: state for state in lacking}.items()):
            lock = state.cache.folder / ".computing.lock"
            self._open.enter_context(exclusive(lock, on_wait=partial(self._say_waiting, state, lock)))
        for state in lacking:
            state.cache.refresh()
            state.record.update(state.cache.decision(PRECISION) | state.cache.decision(state.job))

    def _say_waiting(self, state: EncoderState, lock: Path) -> None:
        holder = holder_of(lock) or {}
        began = time.strftime("%H:%M:%S", time.localtime(holder.get("since", time.time())))
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}, since {began}"
        self.progress.say(f"{state.encoder.name}: waiting for another run that computes its features ({who})")

    def _check_name(self, state: EncoderState) -> None:
        """Two encoders of one call must not be written to one file."""
        name = file_name(self.dataset.name, model_name(state.encoder), size_of(state.encoder), "train")
        if self._files.setdefault(name, state.cache.fingerprint) != state.cache.fingerprint:
            raise HistobenchError(
                f"two different encoders are called {model_name(state.encoder)}: both would be written to "
                f"{name}; give each its own name"
            )

    def _trusted(self, state: EncoderState) -> EncoderState:
        """The state with its cached rows, if some of them computed again come out the same; else without."""
        if isinstance(state.encoder, StandIn):  # compared with the same libraries before
            return state
        refs = self._inventory.refs
        keys = [key for key in self._keys if key in state.cache.rows]
        asked = self.settings.recheck
        count = asked if isinstance(asked, int) else images_to_recheck(len(keys), state.encoder)
        seed = secrets.randbits(32)  # other images in every run: what one run misses the next may find
        chosen = sample(keys, count, seed)
        if not chosen:
            return state
        if len(chosen) > FEW:
            self.progress.say(f"{state.encoder.name}: comparing {len(chosen)} cached images with the encoder")
        difference = compare_again(state, chosen, refs, self.device, seed)
        if difference is None:
            with suppress(HistobenchError):  # someone else's cache, or one that is mounted read-only
                state.cache.decide("recheck", {"seed": seed, "images": len(chosen), "of": len(keys)})
            return state
        text = difference.message(state)
        if isinstance(self.progress, Silent):
            log.warning(text)
        else:
            self.progress.say(text)
        if difference.by_chance:
            return state
        state.cache.discard(difference.digest)
        return self._state(state.encoder)

    def _lacks(self, cache: RowCache) -> NDArray[np.bool_]:
        if not cache.rows and not cache.bad:
            return np.ones(len(self._keys), np.bool_)
        return np.fromiter((key not in cache for key in self._keys), np.bool_, len(self._keys))

    @property
    def runner(self) -> DeviceRunner:
        if self._ready is None:
            states = {place: state for place, state in enumerate(self.states) if state.forward is not None}
            self._ready = DeviceRunner(states, self.device, self._pool, tolerant=self._tolerant)
            self._open.callback(self._ready.close)
        return self._ready

    def compute(self, shards: Sequence[Shard]) -> dict[bytes, str]:
        """Compute shards of the plan; return every image that is known to be bad."""
        refs: Mapping[bytes, ImageRef] = self._inventory.refs
        bad = self._known_bad()
        if not shards:
            return bad
        runner, plan = self.runner, self.planned
        places = sorted({place for shard in shards for place in shard.encoders})
        names = ", ".join(self.states[place].encoder.name for place in places)
        count = len(self.settings.devices)
        shares = [list(shards[start::count]) for start in range(count)]  # dealt out like cards
        known_bad = bool(bad or plan.unreadable)
        others: list[DeviceProcess] = []
        self.progress.begin(f"{self.dataset.name} x {names}", sum(len(shard.keys) for shard in shards))
        try:
            for device, share in zip(self.settings.devices[1:], shares[1:], strict=True):
                if share:
                    work = Share(
                        {place: plan.encoders[place] for place in places},
                        tuple(share),
                        {key: refs[key] for shard in share for key in shard.keys},
                        root=self.root,
                        settings=replace(self.settings, device=device),
                        workers=self._pool.workers,
                        threads=plan.threads,
                    )
                    others.append(DeviceProcess(work, self.progress))
            run = partial(
                runner.run,
                refs=refs,
                stop_at_bad=self.settings.on_bad_image == "stop",
                known_bad=known_bad,
                progress=self.progress,
            )
            bad |= run(shares[0])
            for process in others:
                process.wait()
            for place in places if others else ():
                self.states[place].cache.refresh()
            if rest := runner.lacking([shard for share in shares[1:] for shard in share]):
                bad |= run(rest)
        except KeyboardInterrupt as error:
            raise InterruptedWorkError(self._kept(places)) from error
        finally:
            for process in others:
                process.stop()
            self.progress.end()
        for place in places:
            self.states[place].cache.refresh()
        return bad | self._known_bad()

    def _known_bad(self) -> dict[bytes, str]:
        refs = self._inventory.refs
        return {key: why for state in self.states for key, why in state.cache.bad.items() if key in refs}

    def _kept(self, places: Sequence[int]) -> str:
        if self.settings.no_cache:
            return "without the cache, nothing is kept"
        messages = []
        for state in (self.states[place] for place in places):
            state.cache.refresh()
            kept = len(self._keys) - int(self._lacks(state.cache).sum())
            messages.append(
                f"{kept} of {len(self._keys)} images of {self.dataset.name} x {state.encoder.name} are kept"
            )
        return "; ".join(messages)


def _of_this_cpu(cache: RowCache) -> RowCache:
    """Return the cache, if rows of this kind of CPU belong there; else one for this kind alone."""
    here = cpu_kind()
    try:
        first = cache.decide_once("cpu", {"kind": here})["kind"]
    except (HistobenchError, KeyError):  # mounted read-only: nothing is added
        return cache
    return cache if first == here else RowCache(cache.root, {**cache.description, "cpu": here})
