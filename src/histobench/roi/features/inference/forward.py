"""A network ready to compute: its precision, its pinned memory, and the forward pass itself."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.core.folders import cache_dir
from histobench.roi.encoders.base import PRECISIONS, BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec

#: The largest difference, relative to the largest feature, that rounding may make.
TOLERANCE = 1e-4


def fused(encoder: nn.Module, images: Tensor) -> nn.Module | None:
    """A copy of a frozen network without its batch normalisations, or None when that changes the features."""
    with torch.no_grad():
        pairs = _pairs(encoder, images)
        if not pairs:
            return None
        twin = copy.deepcopy(encoder)
        for convolution, norm in pairs:
            _fold(twin, convolution, norm)
        expected, got = encoder(images), twin(images)
    return twin if bool((got - expected).abs().max() <= TOLERANCE * expected.abs().max()) else None


def _pairs(network: nn.Module, images: Tensor) -> list[tuple[str, str]]:
    """Names of (convolution, normalisation) where the one's output is the other's input, each used once."""
    outputs: dict[int, tuple[str, Tensor]] = {}
    found: list[tuple[str, str]] = []
    calls: Counter[str] = Counter()

    def after_convolution(name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        calls[name] += 1
        outputs[id(output)] = (name, output)  # kept, so that no other tensor gets its identity

    def before_norm(name: str, module: nn.Module, inputs: Any) -> None:
        calls[name] += 1
        if source := outputs.get(id(inputs[0])):
            found.append((source[0], name))

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_hook(partial(after_convolution, name)))
            elif _is_norm(module):
                hooks.enter_context(module.register_forward_pre_hook(partial(before_norm, name)))
        network(images)
    sources = [source for source, _ in found]
    return [
        (source, norm)
        for source, norm in found
        if calls[source] == calls[norm] == 1 and sources.count(source) == 1
    ]


def _is_norm(module: nn.Module) -> bool:
    """Plain batch normalisation, or timm's, which brings its activation along."""
    plain = type(module) is nn.BatchNorm2d
    with_activation = type(module).__name__ == "BatchNormAct2d" and isinstance(module, nn.BatchNorm2d)
    return (plain or with_activation) and getattr(module, "running_mean", None) is not None


def _fold(network: nn.Module, convolution: str, norm: str) -> None:
    conv: Any = network.get_submodule(convolution)
    bn: Any = network.get_submodule(norm)
    scale = (bn.running_var.double() + bn.eps).rsqrt()
    if bn.weight is not None:
        scale = scale * bn.weight.double()
    shift = -bn.running_mean.double() * scale
    if bn.bias is not None:
        shift = shift + bn.bias.double()
    if conv.bias is not None:
        shift = shift + conv.bias.double() * scale
    weight = conv.weight.double() * scale.view(-1, 1, 1, 1)
    conv.weight = nn.Parameter(weight.to(conv.weight.dtype), requires_grad=False)
    conv.bias = nn.Parameter(shift.to(conv.weight.dtype), requires_grad=False)
    parent, _, last = norm.rpartition(".")
    rest = nn.Sequential(bn.drop, bn.act) if hasattr(bn, "act") else nn.Identity()
    setattr(network.get_submodule(parent), last, rest)


def resolve_precision(asked: str, recommended: torch.dtype, device: str) -> str:
    """`auto` is what the encoder's authors recommend on a GPU, and fp32 elsewhere."""
    if asked in PRECISIONS:
        return asked
    if torch.device(device).type != "cuda":
        return "fp32"
    name = next((key for key, dtype in PRECISIONS.items() if dtype == recommended), "fp32")
    return "fp16" if name == "bf16" and not torch.cuda.is_bf16_supported() else name


@contextmanager
def arithmetic(device: str, precision: str) -> Iterator[None]:
    """No gradients; autocast below fp32; and fp32 means fp32 (not the shortened products of tensor cores)."""
    kind = torch.device(device).type
    allowed = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with (
            torch.no_grad(),  # and not inference_mode, whose tensors have compiled networks compile again
            torch.autocast(kind, dtype=PRECISIONS[precision], enabled=precision != "fp32"),
        ):
            yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allowed


@contextmanager
def pin(ring: Sequence[Sequence[NDArray[Any]]], device: str) -> Iterator[bool]:
    """Lock the pages of the ring's arrays for a GPU; where that is refused, copies are only slower."""
    locked: list[int] = []
    if torch.device(device).type == "cuda":
        runtime = torch.cuda.cudart()
        for array in (array for slot in ring for array in slot):
            pointer = array.ctypes.data
            if runtime.cudaHostRegister(pointer, array.nbytes, 0) != runtime.cudaError.success:
                break
            locked.append(pointer)
    try:
        yield bool(locked)
    finally:
        for pointer in locked:
            torch.cuda.cudart().cudaHostUnregister(pointer)


log = logging.getLogger(__name__)

#: A network with this many convolutions is a CNN, and those run fastest with channels last.
CNN_CONVOLUTIONS = 4


class PixelEncoder(nn.Module):
    """Normalisation and encoder as one network: uint8 [b, h, w, 3] (or floats [b, 3, h, w]) to features."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: BasePatchEncoder, *, channels_last: bool, tokens: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.tokens = tokens  # patch tokens [b, d, h, w] instead of features
        self.channels_last = channels_last
        transform = encoder.eval_transforms
        self.takes_pixels = isinstance(transform, TransformSpec)
        if isinstance(transform, TransformSpec):
            # As buffers: a constant made in every step would have the device wait for it.
            self.register_buffer("mean", torch.tensor(transform.mean).view(3, 1, 1))
            self.register_buffer("std", torch.tensor(transform.std).view(3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        run, images = self.encoder.patch_tokens if self.tokens else self.encoder, pixels
        if self.takes_pixels:
            images = (pixels.movedim(-1, -3).to(torch.float32).div(255.0) - self.mean) / self.std
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return run(images.contiguous(memory_format=layout)).float()


@dataclass
class Pending:
    """Features that may still be on their way from the device."""

    parts: list[tuple[Tensor, int]]
    ready: Any = None  # a CUDA event
    timed: tuple[Any, Any] | None = None

    @property
    def is_ready(self) -> bool:
        return self.ready is None or bool(self.ready.query())

    def result(self) -> Tensor:
        if self.ready is not None:
            self.ready.synchronize()
        # By NumPy: torch would wake its threads for this, and they spin on the cores that decode images.
        return torch.from_numpy(np.concatenate([part.numpy()[:count] for part, count in self.parts]))


class Forward:
    """Runs an encoder in batches of one constant size, whatever comes in."""

    def __init__(self, encoder: BasePatchEncoder, *, device: str, precision: str, batch: int) -> None:
        self.device = device
        self.precision = precision
        self.batch = batch
        self.dim = encoder.embed_dim
        self.name = encoder.name
        #: Seconds the device spent in this network (on a GPU: known once the results have been fetched).
        self.seconds = 0.0
        self.compiled = False
        encoder.eval().requires_grad_(False)
        self._cuda = torch.device(device).type == "cuda"
        if self._cuda:
            torch.cuda.set_device(device)  # events and streams belong to the current device
        self._plain = PixelEncoder(encoder, channels_last=False).to(device).eval()
        self._network = self._plain
        self.is_cnn = is_cnn(encoder)
        if self.is_cnn:
            encoder.to(memory_format=torch.channels_last)
            self._network = PixelEncoder(encoder, channels_last=True).to(device).eval()
        self._run: Callable[[Tensor], Tensor] = self._network
        self._copies = torch.cuda.Stream(device) if self._cuda else None
        self._unread: deque[Pending] = deque()

    def plain(self, pixels: Tensor) -> Tensor:
        """The features by the plainest path, for comparison: fp32, not compiled, one memory layout."""
        with arithmetic(self.device, "fp32"):
            return torch.cat([self._plain(part.to(self.device)).cpu() for part in pixels.split(self.batch)])

    def fold(self) -> None:
        """Do away with the batch normalisations of a CNN, where that works; the encoder stays as it is."""
        encoder = self._network.encoder
        transform = encoder.eval_transforms
        if not self._network.channels_last or not isinstance(transform, TransformSpec):
            return
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(1, 3, transform.crop, transform.crop, generator=generator).to(self.device)
        # Preparing cuDNN for one image takes seconds; the plain kernels do as well.
        with arithmetic(self.device, "fp32"), torch.backends.cudnn.flags(enabled=False):
            twin = fused(encoder, images.contiguous(memory_format=torch.channels_last))
        if isinstance(twin, BasePatchEncoder):
            network = PixelEncoder(twin, channels_last=True).to(self.device).eval()
            self._run = self._network = network.to(memory_format=torch.channels_last)

    def compile(self, backend: str = "inductor") -> None:
        """Let the first batch compile the network for this batch size; if that fails, go on without."""
        # Programs are kept for later runs, beside the features that they compute.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
        # It reports at length that a machine without a GPU has none.
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        # On a CPU weights become constants of the program, laid out as its convolutions want them.
        options: dict[str, Any] | None = (
            {"freezing": True} if backend == "inductor" and not self._cuda else None
        )
        self._run = torch.compile(self._network, dynamic=False, backend=backend, options=options)
        self.compiled = True

    def start(self, pixels: Tensor, count: int) -> Pending:
        """Begin to encode the first `count` rows of host memory; on a GPU this returns at once."""
        parts: list[tuple[Tensor, int]] = []
        position = 0
        began = time.perf_counter()
        events: Any = None
        if self._cuda:
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            events[0].record()
        while position < count:
            piece = pixels[position : min(position + self.batch, count)]
            features = self._survive(piece)
            if features is None:
                continue  # the batch has become smaller: the same images again
            if features.shape[1:] != (self.dim,):
                raise HistobenchError(
                    f"{self.name} gives features of shape {tuple(features.shape)}, "
                    f"but its embed_dim is {self.dim}: expected [images, {self.dim}]"
                )
            parts.append((features, len(piece)))
            position += len(piece)
        if not self._cuda:
            self.seconds += time.perf_counter() - began
            return Pending(parts)
        events[1].record()
        ready = torch.cuda.Event()
        ready.record()
        return Pending(parts, ready, events)

    def on_device(self, pixels: Tensor) -> Tensor:
        """The features of one whole batch that is on the device already; they stay there."""
        with arithmetic(self.device, self.precision):
            return self._run(pixels)

    def finish(self, pending: Pending) -> Tensor:
        features = pending.result()
        if pending.timed is not None:
            self.seconds += pending.timed[0].elapsed_time(pending.timed[1]) / 1000
        return features

    def _survive(self, piece: Tensor) -> Tensor | None:
        """One step, or None after memory ran out and the batch was halved."""
        try:
            return self._step(piece)
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error) and self.batch > 1:
                self.batch = max(1, min(self.batch, len(piece) if len(piece) > 1 else self.batch) // 2)
                log.warning(
                    "%s: out of memory on %s; the batch is now %d", self.name, self.device, self.batch
                )
                if self._cuda:
                    torch.cuda.empty_cache()
                return None
            if is_out_of_memory(error):
                raise HistobenchError(
                    f"{self.name}: one image does not fit into the memory of {self.device}"
                ) from error
            if isinstance(error, HistobenchError):
                raise
            if self.compiled:
                log.warning(
                    "%s cannot be compiled (%s); going on without",
                    self.name,
                    (str(error) or type(error).__name__).splitlines()[0][:200],
                )
                self._run, self.compiled = self._network, False
                return None
            raise HistobenchError(
                f"{self.name} fails on a batch of shape {tuple(piece.shape)}: {type(error).__name__}: {error}"
            ) from error

    def _step(self, piece: Tensor) -> Tensor:
        with arithmetic(self.device, self.precision):
            if self._copies is None:
                pixels = self._padded(piece.to(self.device))
                return self._rows(self._with_room(pixels) if self.compiled else pixels).cpu()
            compute = torch.cuda.current_stream(self.device)
            with torch.cuda.stream(self._copies):
                pixels = piece.to(self.device, non_blocking=True)
            compute.wait_stream(self._copies)
            pixels.record_stream(compute)
            features = self._rows(self._padded(pixels))
            host = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
            host.copy_(features, non_blocking=True)
            return host

    def _rows(self, pixels: Tensor) -> Tensor:
        features = self._run(pixels)
        if len(features) != len(pixels):
            raise HistobenchError(
                f"{self.name} gives features of shape {tuple(features.shape)} for {len(pixels)} images; "
                "expected one row for each image"
            )
        return features

    def _with_room(self, pixels: Tensor) -> Tensor:
        # Compiled code for the CPU reads past the edges of its input where a network pads its images; at the
        # end of the memory shared with the workers that would be the end of this process.
        roomy = torch.zeros((len(pixels) + 2, *pixels.shape[1:]), dtype=pixels.dtype, device=pixels.device)
        roomy[1:-1] = pixels
        return roomy[1:-1]

    def _padded(self, pixels: Tensor) -> Tensor:
        # One shape for all batches: nothing is compiled twice, and a row's arithmetic does not depend on
        # how many images happened to be left.
        if len(pixels) == self.batch:
            return pixels
        full = torch.zeros((self.batch, *pixels.shape[1:]), dtype=pixels.dtype, device=pixels.device)
        full[: len(pixels)] = pixels
        return full


def is_cnn(encoder: nn.Module) -> bool:
    modules = list(encoder.modules())
    convolutions = sum(isinstance(module, nn.Conv2d) for module in modules)
    linear = sum(isinstance(module, nn.Linear) for module in modules)
    return convolutions >= CNN_CONVOLUTIONS and convolutions > linear


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory")
    )
