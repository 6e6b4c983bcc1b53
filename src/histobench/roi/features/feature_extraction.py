"""Images to feature files: the one function that the command line and Python users call."""

from __future__ import annotations

import logging
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from histobench.core.claim import exclusive, holder_of
from histobench.core.devices import cpu_kind, resolve_device
from histobench.core.errors import HistobenchError, InterruptedWorkError
from histobench.core.files import check_writable
from histobench.core.folders import cache_dir, local_dir
from histobench.core.progress import Progress, Silent
from histobench.core.text import check_plain_name
from histobench.roi.data.check import copies_in
from histobench.roi.data.image_ref import ImageRef
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset, RoiImage, listing
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.construct import StandIn
from histobench.roi.encoders.own_name import check_labels
from histobench.roi.encoders.registry import check_distinct_weights, require_encoders
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.assemble import feature_file, model_name
from histobench.roi.features.cache.content_hashes import HashInventory, take_inventory
from histobench.roi.features.cache.row_cache import RowCache, is_cached
from histobench.roi.features.feature_file import check_origin
from histobench.roi.features.fingerprint import (
    LIBRARIES,
    describe_encoder,
    feature_set_fingerprint,
    fingerprint,
    versions,
)
from histobench.roi.features.inference.device_runner import PRECISION, DeviceRunner, EncoderState
from histobench.roi.features.inference.forward import resolve_precision
from histobench.roi.features.inference.multi_device import DeviceProcess, Share, share_shards
from histobench.roi.features.inference.shards import Shard, plan_shards, shard_size
from histobench.roi.features.inference.tuning import LARGEST, cpu_batch
from histobench.roi.features.loading.loader import Pool, open_pool, useful_workers
from histobench.roi.features.loading.loading_pool import ThreadPool
from histobench.roi.features.loading.local_copies import LocalCopies
from histobench.roi.features.recheck import check_batch, compare_again, images_to_recheck, sample
from histobench.roi.features.settings import EncoderRecipe
from histobench.roi.features.shard_plan import (
    EncoderFacts,
    Extraction,
    ExtractionPlan,
    PlannedEncoder,
    problems_of,
    write_features,
)
from histobench.roi.options import Settings

log = logging.getLogger(__name__)

#: Images of the job on which a low precision is tried first.
TRIAL_IMAGES = 32
#: Cached images that are computed again without a word.
FEW = 32
#: Under this name a cache keeps the versions of the libraries under which its rows were last computed or
#: compared. With the same versions a zoo encoder whose images are all cached is not built.
VERSIONS = "versions"
#: Shards of which a copy on this machine's own disk is made at a time.
SHARDS_PER_COPY = 8


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
    `no_cache` neither uses cached features nor keeps any. With `stage` ("local", or a folder by its full
    path) images are copied to this machine's own disk before they are decoded, and removed from there.

    Each image is decoded once for all encoders with the same resizing. Rows go to the cache
    (see `core.folders.cache_dir`) as they are made, so that a killed run goes on where it
    was when the same call is made again, and gives the same files bit for bit.
    """
    chosen = Settings(**settings)
    given = [encoders] if isinstance(encoders, BasePatchEncoder | EncoderRecipe) else list(encoders)
    if not given:
        raise HistobenchError("no encoder is given")
    check_plain_name(dataset.name.replace("/", "_").replace("\\", "_"), what="dataset")
    if not any(dataset.splits.values()):
        raise HistobenchError(f"{dataset.name} has no images")
    if len(chosen.devices) > 1 and not all(isinstance(item, EncoderRecipe) for item in given):
        raise HistobenchError("several devices need encoders by name: give an EncoderRecipe")
    _check_writable(Path(save_dir))
    recipes = [item for item in given if isinstance(item, EncoderRecipe)]
    require_encoders({item.name: item.unresolved() for item in recipes})
    check_labels(item.name for item in recipes)
    _check_weights(recipes)
    return _Run(dataset, given, Path(save_dir), chosen, progress or Silent()).result()


def plan_extraction(
    dataset: RoiDataset,
    recipes: Sequence[EncoderRecipe],
    save_dir: Path,
    settings: Settings,
) -> ExtractionPlan:
    """What `extract` would compute, and how, for other processes to do."""
    check_plain_name(dataset.name.replace("/", "_").replace("\\", "_"), what="dataset")
    check_labels(item.name for item in recipes)
    _check_weights(recipes)
    return _Run(dataset, recipes, save_dir, settings, Silent()).plan()


def _check_own_files(planned: Sequence[PlannedEncoder]) -> None:
    """No feature file may be of two encoders."""
    owners: dict[str, PlannedEncoder] = {}
    for encoder in planned:
        other = owners.setdefault(encoder.facts.model, encoder)
        if other.description != encoder.description:
            raise HistobenchError(
                f"two different encoders are called {encoder.facts.model}; give each its own name"
            )


def _check_weights(recipes: Sequence[EncoderRecipe]) -> None:
    for weights in {recipe.weights for recipe in recipes}:
        check_distinct_weights((recipe.name for recipe in recipes if recipe.weights == weights), weights)


def _check_writable(folder: Path) -> None:
    # Found out now, not after hours of work; the folder itself is made when there is something to put in.
    try:
        check_writable(folder)
    except OSError as error:
        raise HistobenchError(f"cannot write feature files to {folder}: {error.strerror or error}") from error


class _Run:
    """One call of `extract`, step by step."""

    def __init__(
        self,
        dataset: RoiDataset,
        given: Sequence[BasePatchEncoder | EncoderRecipe],
        save_dir: Path,
        settings: Settings,
        progress: Progress,
    ) -> None:
        self.began = time.perf_counter()
        self.dataset = dataset
        self.given = given
        self.save_dir = save_dir
        self.settings = settings
        self.progress = progress
        self.device = resolve_device(settings.devices[0])
        self.root = cache_dir()
        # A database is no file for several machines; what it remembers costs time to find out, no more.
        self._memory = local_dir()
        self.seconds: dict[str, float] = {}

    def result(self) -> list[Extraction]:
        if not self.settings.no_cache:
            return self._result()
        self.save_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".no-cache-", dir=self.save_dir) as folder:
            self.root = self._memory = Path(folder)
            return self._result()

    def _result(self) -> list[Extraction]:
        with self._pool() as pool:
            # Hashing needs the disk and the workers, building the networks needs this process: both at once.
            with ThreadPoolExecutor(1, thread_name_prefix="histobench-inventory") as background:
                hashing = background.submit(take_inventory, self.dataset, pool, self._memory)
                made = [self._stand_in(item) or self._built(item) for item in self.given]
                inventory = hashing.result()
            for text in copies_in(self.dataset, inventory.keys):
                log.warning("%s: %s; histobench data check lists them", self.dataset.name, text)
            with closing(inventory):
                if not all(isinstance(encoder.eval_transforms, TransformSpec) for encoder in made):
                    pool.close()  # transforms of the user's own stay in this process
                    pool = ThreadPool(pool.workers)
                for encoder in made:
                    check_batch(encoder, list(inventory.refs.values()), self.device)
                states = [
                    self._with_network(item, self._state(encoder, inventory), inventory)
                    for item, encoder in zip(self.given, made, strict=True)
                ]
                self._check_files(states)
                states = [self._trusted(state, inventory) for state in states]
                with closing(pool), self._alone(states, inventory):
                    missing = [self._missing(state.cache, inventory) for state in states]
                    bad = self._compute(states, missing, inventory, pool)
        problems = problems_of(self.dataset, inventory.keys, inventory.unreadable, bad)
        self._stop_at(problems)
        for state in states:
            self._note_versions(state)
        return [
            self._write(state, item.name, split, inventory, problems, set(lacking))
            for item, state, lacking in zip(self.given, states, missing, strict=True)
            for split in SPLITS
            if self.dataset.splits.get(split)
        ]

    def _built(self, item: BasePatchEncoder | EncoderRecipe) -> BasePatchEncoder:
        return item if isinstance(item, BasePatchEncoder) else item.build()

    def _stand_in(self, item: BasePatchEncoder | EncoderRecipe) -> BasePatchEncoder | None:
        """Return a zoo encoder without its network, if the cache knows it and nothing else is asked for."""
        if isinstance(item, BasePatchEncoder) or self.settings.recheck != "auto" or self.settings.no_cache:
            return None
        encoder = item.stand_in()
        known = encoder is not None and any(is_cached(self.root, each) for each in self._named(encoder)[1:])
        return encoder if known else None

    def _with_network(
        self, item: BasePatchEncoder | EncoderRecipe, state: EncoderState, inventory: HashInventory
    ) -> EncoderState:
        """Return the state, with the network built if images are missing or libraries have changed."""
        if not isinstance(state.encoder, StandIn):
            return state
        checked = state.cache.decision(VERSIONS) == versions(*LIBRARIES)
        if checked and not self._missing(state.cache, inventory):
            return state
        return self._state(self._built(item), inventory)

    def _note_versions(self, state: EncoderState) -> None:
        """Remember with which libraries the rows of a zoo encoder were computed or compared."""
        if not isinstance(state.encoder, StandIn) and "family" in state.encoder.identity:
            with suppress(HistobenchError):  # a cache that is mounted read-only
                if self.settings.recheck != 0:
                    state.cache.decide(VERSIONS, versions(*LIBRARIES))

    @contextmanager
    def _pool(self) -> Iterator[Pool]:
        """The loading workers of this run."""
        on_cpu = torch.device(self.device).type == "cpu"
        workers = useful_workers(self.settings.num_workers, on_cpu=on_cpu)
        with closing(open_pool(-(-workers // len(self.settings.devices)), polite=on_cpu)) as pool:
            yield pool

    def _stop_at(self, problems: dict[RoiImage, str]) -> None:
        if problems and self.settings.on_bad_image == "stop":
            raise HistobenchError(
                f"{listing(problems.values())}\n  `on_bad_image` skip leaves such images out; "
                "what has been computed is kept"
            )

    def _state(self, encoder: BasePatchEncoder, inventory: HashInventory) -> EncoderState:
        precision, exact, fast = self._named(encoder)
        kind = torch.device(self.device).type
        cache = self._cache(exact if self.settings.is_exact(precision) else fast)
        if precision == "fp32" and self.settings.compile == "auto" and is_cached(self.root, exact):
            known = self._cache(exact)  # serves, if it has all images
            cache = cache if self._missing(known, inventory) else known
        images = feature_set_fingerprint("", sorted(inventory.refs))
        job = fingerprint([images, kind, str(self.settings.batch_size), self.settings.compile])
        name = f"jobs/{job}"
        return EncoderState(encoder, precision, cache, cache.decision(PRECISION) | cache.decision(name), name)

    def _named(self, encoder: BasePatchEncoder) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return the precision, and the descriptions of features by exact and by fast arithmetic."""
        precision = resolve_precision(self.settings.precision, encoder.precision, self.device)
        kind = torch.device(self.device).type
        exact = describe_encoder(encoder, precision=precision, numerics=f"exact on {kind}")
        return precision, exact, {**exact, "numerics": "fast"}

    def _cache(self, description: Mapping[str, Any]) -> RowCache:
        cache = RowCache(self.root, description)
        return _of_this_cpu(cache) if torch.device(self.device).type == "cpu" else cache

    @contextmanager
    def _alone(self, states: Sequence[EncoderState], inventory: HashInventory) -> Iterator[None]:
        """Wait for other runs that compute with the same encoders: what they make need not be made twice.

        Two that computed the same images at once would also differ in the last bits, as batches do.
        """
        lacking = [state for state in states if self._missing(state.cache, inventory)]
        with ExitStack() as stack:
            # One lock per encoder, for the same one may be asked for twice, in an order that all runs keep.
            by_cache = {state.cache.fingerprint: state for state in lacking}
            for _, state in sorted(by_cache.items()):
                lock = state.cache.folder / ".computing.lock"
                stack.enter_context(exclusive(lock, on_wait=partial(self._say_waiting, state, lock)))
            for state in lacking:
                state.cache.refresh()
                state.record.update(state.cache.decision(PRECISION) | state.cache.decision(state.job))
            yield

    def _say_waiting(self, state: EncoderState, lock: Path) -> None:
        holder = holder_of(lock) or {}
        began = time.strftime("%H:%M:%S", time.localtime(holder.get("since", time.time())))
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}, since {began}"
        self.progress.say(f"{state.encoder.name}: waiting for another run that computes its features ({who})")

    def _check_files(self, states: Sequence[EncoderState]) -> None:
        """No feature file may be of two encoders, in this call or from an earlier one."""
        owners: dict[Path, EncoderState] = {}
        for state in states:
            for split in (split for split in SPLITS if self.dataset.splits.get(split)):
                path = self._path(state.encoder, split)
                other = owners.setdefault(path, state)
                if other.cache.fingerprint != state.cache.fingerprint:
                    raise HistobenchError(
                        f"two different encoders are called {model_name(state.encoder)}: both would be "
                        f"written to {path.name}; give each its own name"
                    )
                check_origin(path, state.encoder)

    def _trusted(self, state: EncoderState, inventory: HashInventory) -> EncoderState:
        """The state with its cached rows, if some of them computed again come out the same; else without."""
        if isinstance(state.encoder, StandIn):  # compared with the same libraries before
            return state
        keys = [key for key in self._keys(inventory) if key in state.cache.rows]
        asked = self.settings.recheck
        count = asked if isinstance(asked, int) else images_to_recheck(len(keys), state.encoder)
        seed = secrets.randbits(32)  # other images in every run: what one run misses the next may find
        chosen = sample(keys, count, seed)
        if not chosen:
            return state
        if len(chosen) > FEW:
            self.progress.say(f"{state.encoder.name}: comparing {len(chosen)} cached images with the encoder")
        difference = compare_again(state, chosen, inventory.refs, self.device, seed)
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
        return self._state(state.encoder, inventory)

    def _keys(self, inventory: HashInventory) -> list[bytes]:
        """The readable images of the dataset, each once."""
        images = (image for split in SPLITS for image in self.dataset.splits.get(split, ()))
        keys = (inventory.key_of(image) for image in images)
        return list(dict.fromkeys(key for key in keys if key is not None))

    def _missing(self, cache: RowCache, inventory: HashInventory) -> list[bytes]:
        return [key for key in self._keys(inventory) if key not in cache]

    def _compute(
        self,
        states: Sequence[EncoderState],
        missing: Sequence[list[bytes]],
        inventory: HashInventory,
        pool: Pool,
    ) -> dict[bytes, str]:
        """Fill the caches; gives back every image that is known to be bad."""
        bad = {key: why for state in states for key, why in state.cache.bad.items() if key in inventory.refs}
        lacking = [position for position, keys in enumerate(missing) if keys]
        if not lacking:
            self.progress.say(f"{self.dataset.name}: all features were in the cache; nothing to compute")
            return bad
        active = [states[position] for position in lacking]
        lists = [missing[position] for position in lacking]
        shards = self._cut(lists)
        total = sum(len(shard.keys) for shard in shards)
        known = len(inventory.refs) - len(set().union(*lists))
        if known:
            self.progress.say(
                f"{self.dataset.name}: {known} of {len(inventory.refs)} images were in the cache"
            )
        runner = self._runner(active, lists, inventory)
        names = ", ".join(state.encoder.name for state in active)
        shares = share_shards(shards, len(self.settings.devices))
        known_bad = bool(bad or inventory.unreadable)
        others: list[DeviceProcess] = []
        copies = LocalCopies(self.settings.stage) if self.settings.stage else None
        self.progress.begin(f"{self.dataset.name} x {names}", total)
        try:
            refs = inventory.refs if copies is None else self._copied(copies, shards, inventory)
            recipes = [self.given[position] for position in lacking] if len(shares) > 1 else []
            for device, share in zip(self.settings.devices[1:], shares[1:], strict=True):
                if share:
                    others.append(self._elsewhere(device, share, recipes, active, refs, pool, known_bad))
            bad |= runner.run(
                shares[0],
                refs,
                pool,
                stop_at_bad=self.settings.on_bad_image == "stop",
                known_bad=known_bad,
                progress=self.progress,
            )
            for process in others:
                bad |= process.wait()
        except KeyboardInterrupt as error:
            raise InterruptedWorkError(self._kept(active, inventory)) from error
        finally:
            runner.close()
            for process in others:
                process.stop()
            if copies is not None:
                copies.remove()
            self.progress.end()
        for state in active:
            state.cache.refresh()
        for state, forward in zip(active, runner.forwards, strict=True):
            self.seconds[state.cache.fingerprint] = forward.seconds
        return bad

    def _kept(self, states: Sequence[EncoderState], inventory: HashInventory) -> str:
        """What is in the cache when the run is interrupted."""
        if self.settings.no_cache:
            return "without the cache, nothing is kept"
        messages = []
        for state in states:
            state.cache.refresh()
            keys = self._keys(inventory)
            kept = len(keys) - len(self._missing(state.cache, inventory))
            messages.append(
                f"{kept} of {len(keys)} images of {self.dataset.name} x {state.encoder.name} are kept"
            )
        return "; ".join(messages)

    def _copied(
        self, copies: LocalCopies, shards: Sequence[Shard], inventory: HashInventory
    ) -> dict[bytes, ImageRef]:
        """Where the images are read from: copies of some shards each, as far as there is room for them."""
        self.progress.say(f"copying images to {copies.folder}")
        refs: dict[bytes, ImageRef] = {}
        for start in range(0, len(shards), SHARDS_PER_COPY):
            some = (key for shard in shards[start : start + SHARDS_PER_COPY] for key in shard.keys)
            refs |= copies.refs([key for key in some if key not in refs], inventory.refs)
        if copies.reason:
            self.progress.say(f"images are read where they are: {copies.reason}")
        return refs

    def _cut(self, missing: Sequence[list[bytes]]) -> list[Shard]:
        """The missing images of every encoder as shards."""
        asked = self.settings.batch_size
        on_cpu = torch.device(self.device).type == "cpu"
        batch = asked if isinstance(asked, int) else cpu_batch() if on_cpu else LARGEST
        return plan_shards(missing, shard_size(batch, on_cpu=on_cpu))

    def _runner(
        self, states: Sequence[EncoderState], missing: Sequence[list[bytes]], inventory: HashInventory
    ) -> DeviceRunner:
        """The encoders on the device, with everything decided."""
        keys = missing[0][:: max(1, len(missing[0]) // TRIAL_IMAGES)][:TRIAL_IMAGES]
        images = [inventory.refs[key] for key in keys]
        return DeviceRunner(states, self.settings, self.device, [len(keys) for keys in missing], images)

    def plan(self) -> ExtractionPlan:
        """Everything but the computation: what is missing, cut into shards, and every decision about it.

        One encoder is in memory at a time; one that cannot be made is among the failures.
        """
        with self._pool() as pool:
            inventory = take_inventory(self.dataset, pool, self._memory)
        planned: list[PlannedEncoder] = []
        missing: list[list[bytes]] = []
        failures: dict[str, str] = {}
        with closing(inventory):
            for item in self.given:
                assert isinstance(item, EncoderRecipe)
                try:
                    encoder = self._stand_in(item) or item.build()
                    check_batch(encoder, list(inventory.refs.values()), self.device)
                    state = self._with_network(item, self._state(encoder, inventory), inventory)
                    self._check_files([state])
                    state = self._trusted(state, inventory)
                    lacking = self._missing(state.cache, inventory)
                    if lacking:
                        self._runner([state], [lacking], inventory)
                except HistobenchError as error:
                    failures[item.name] = str(error)
                    continue
                planned.append(
                    PlannedEncoder.of(item, state, known=len(self._keys(inventory)) - len(lacking))
                )
                missing.append(lacking)
        _check_own_files(planned)
        shards = self._cut(missing)
        listed = {key for shard in shards for key in shard.keys}
        return ExtractionPlan(
            tuple(planned),
            failures,
            tuple(shards),
            {key: inventory.refs[key] for key in listed},
            inventory.keys,
            inventory.unreadable,
            self.device,
            torch.get_num_threads(),
        )

    def _elsewhere(
        self,
        device: str | None,
        shards: Sequence[Shard],
        recipes: Sequence[BasePatchEncoder | EncoderRecipe],
        states: Sequence[EncoderState],
        refs: Mapping[bytes, ImageRef],
        pool: Pool,
        known_bad: bool,
    ) -> DeviceProcess:
        """Have shards computed on another device, with the decisions that were made on the first."""
        share = Share(
            recipes=tuple(recipe for recipe in recipes if isinstance(recipe, EncoderRecipe)),
            descriptions=tuple(state.cache.description for state in states),
            # The fast path is compared with the plain one on the first device only.
            records=tuple({**state.record, "exactness": {}} for state in states),
            shards=tuple(shards),
            refs={key: refs[key] for shard in shards for key in shard.keys},
            root=self.root,
            settings=replace(self.settings, device=device),
            workers=pool.workers,
            threads=torch.get_num_threads(),
            known_bad=known_bad,
        )
        return DeviceProcess(share, self.progress)

    def _write(
        self,
        state: EncoderState,
        asked: str,
        split: str,
        inventory: HashInventory,
        problems: dict[RoiImage, str],
        lacking: set[bytes],
    ) -> Extraction:
        # Rows that were made anew under the same description are another set for all that comes after.
        generation = state.cache.content if self.settings.no_cache else state.cache.generation
        written = write_features(
            EncoderFacts.of(state.encoder, asked),
            state.cache,
            self.dataset,
            split,
            inventory.keys,
            problems,
            save_dir=self.save_dir,
            generation=generation,
            precision=state.arithmetic,
            exactness=state.record.get("exactness"),
        )
        return replace(
            written,
            computed=len(
                lacking.intersection(inventory.keys[image.path] for image in self._used(split, problems))
            ),
            wall_seconds=time.perf_counter() - self.began,
            forward_seconds=self.seconds.get(state.cache.fingerprint, 0.0),
        )

    def _used(self, split: str, problems: dict[RoiImage, str]) -> list[RoiImage]:
        return [image for image in self.dataset.splits[split] if image not in problems]

    def _path(self, encoder: BasePatchEncoder, split: str) -> Path:
        return self.save_dir / feature_file(self.dataset.name, encoder, split)


def _of_this_cpu(cache: RowCache) -> RowCache:
    """Return the cache, if rows of this kind of CPU belong there; else one for this kind alone.

    The first kind that computes has the cache that other devices use too. Rows from before kinds were
    recorded count as those of the first that comes.
    """
    here = cpu_kind()
    try:
        if cache.rows and not cache.decision("cpu"):
            log.warning("%s: the kind of CPU was not recorded; assumed to be %s", cache.folder, here)
        first = cache.decide_once("cpu", {"kind": here})["kind"]
    except (HistobenchError, KeyError):  # mounted read-only: nothing is added
        return cache
    return cache if first == here else RowCache(cache.root, {**cache.description, "cpu": here})
