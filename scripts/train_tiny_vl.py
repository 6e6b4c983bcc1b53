"""Train tiny-vl on synthetic tiles and captions, and write its weights into the package.

    python scripts/train_tiny_vl.py

The tissue is drawn anew: none of it is in the pack of the demo dataset. The accuracy that is printed is
measured on patients that were held out; the demo dataset is not looked at.
"""

from __future__ import annotations

import argparse
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tiny_vl_captions import make_caption
from tissue_painter import stain_layers
from torch import Tensor
from torch.nn import functional as F

from histobench.core.files import atomic_path
from histobench.roi.data.demo import CLASSES, PROMPT_WORDS, patient_of
from histobench.roi.data.demo.tiles import slide_of
from histobench.roi.encoders.tiny_vl import WEIGHTS
from histobench.roi.encoders.tiny_vl.tiny_vl_encoder import NATIVE_SIZE, TinyVL, encode_texts
from histobench.roi.encoders.transform import IMAGENET_MEAN, IMAGENET_STD

# Of tissue, stains and scanners: far from the seeds of demo datasets.
TRAINING_SEED, HELD_OUT_SEED = 1_000_000_001, 1_000_000_002


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiles-per-class", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=90)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    tiles, labels = make_tiles(args.tiles_per_class, seed=TRAINING_SEED)
    held_out = make_tiles(30, seed=HELD_OUT_SEED)
    print(f"{len(tiles)} training tiles, {time.perf_counter() - start:.0f} s", flush=True)

    network = TinyVL().to(args.device, memory_format=torch.channels_last)
    train(network, tiles, labels, held_out, epochs=args.epochs, batch=args.batch, rate=args.rate, start=start)
    save(network, args.out)
    print(
        f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB; {time.perf_counter() - start:.0f} s in all, "
        f"{time.process_time():.0f} s of CPU time"
    )


def make_tiles(per_class: int, *, seed: int) -> tuple[Tensor, NDArray[np.int64]]:
    """Synthetic training tiles at the network's native size [n, 3, s, s] uint8, and their class ids."""
    size = (NATIVE_SIZE, NATIVE_SIZE)
    pixels = np.empty((per_class * len(CLASSES), *size, 3), np.uint8)
    for number in range(len(pixels)):
        index, label = divmod(number, len(CLASSES))
        rng = np.random.default_rng([1, seed, 1, label, index])
        slide = slide_of(patient_of(index), seed=seed)
        file = slide.jpeg(slide.scan(stain_layers(CLASSES[label], rng, 224), rng))
        pixels[number] = np.asarray(Image.open(BytesIO(file)).resize(size, Image.Resampling.BICUBIC))
    labels = np.arange(len(pixels), dtype=np.int64) % len(CLASSES)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), labels


def train(
    network: TinyVL,
    tiles: Tensor,
    labels: NDArray[np.int64],
    held_out: tuple[Tensor, NDArray[np.int64]],
    *,
    epochs: int,
    batch: int,
    rate: float,
    start: float,
) -> None:
    """Contrastive training: an image matches every caption of its class in the batch, and the reverse."""
    rng = np.random.default_rng(0)
    device = network.logit_scale.device
    steps = epochs * (len(tiles) // batch)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps, pct_start=0.15)
    for epoch in range(epochs):
        network.train()
        order = rng.permutation(len(tiles))[: len(tiles) // batch * batch].reshape(-1, batch)
        total = 0.0
        for rows in order:
            images = augment(normalise(tiles[rows]), rng).to(device)
            ids = torch.from_numpy(encode_texts([make_caption(CLASSES[labels[row]], rng) for row in rows]))
            loss = contrast(network, images, ids.to(device), torch.from_numpy(labels[rows]).to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            with torch.no_grad():
                network.logit_scale.clamp_(max=float(np.log(30.0)))
            total += loss.item()
        accuracy = zero_shot_accuracy(network, *held_out)
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch + 1}/{epochs}: loss {total / len(order):.3f}, "
            f"zero-shot accuracy on held-out synthetic patients {accuracy:.3f}, {seconds:.0f} s",
            flush=True,
        )


def contrast(network: TinyVL, images: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in both directions against the share of matching partners."""
    projected = network.project_image(network.image(images))
    logits = network.logit_scale.exp() * projected @ network.encode_text(ids).T
    same = (labels[:, None] == labels[None, :]).float()
    target = same / same.sum(dim=1, keepdim=True)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def normalise(pixels: Tensor) -> Tensor:
    """uint8 [n, 3, s, s] to the network's input."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (pixels.float().div(255.0) - mean) / std


def augment(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Mirror, turn, zoom and recolour a batch; each image gets its own colour, the batch one geometry."""
    images = torch.rot90(images, int(rng.integers(4)), (2, 3))
    if rng.random() < 0.5:
        images = images.flip(3)
    if rng.random() < 0.4:
        side = int(rng.integers(round(NATIVE_SIZE * 0.7), NATIVE_SIZE + 1))
        top, left = rng.integers(NATIVE_SIZE - side + 1, size=2)
        window = images[:, :, top : top + side, left : left + side]
        images = F.interpolate(window, size=(NATIVE_SIZE, NATIVE_SIZE), mode="bilinear", antialias=True)
    gain = torch.from_numpy(rng.normal(1.0, 0.08, (len(images), 3, 1, 1))).float()
    shift = torch.from_numpy(rng.normal(0.0, 0.12, (len(images), 3, 1, 1))).float()
    return (images * gain + shift).contiguous(memory_format=torch.channels_last)


@torch.inference_mode()
def zero_shot_accuracy(network: TinyVL, tiles: Tensor, labels: NDArray[np.int64]) -> float:
    """Share of tiles whose nearest prompt is their own class's."""
    network.eval()
    prompts = [f"This is a pathology image showing {PROMPT_WORDS[c]} tissue characteristics" for c in CLASSES]
    device = network.logit_scale.device
    text = network.encode_text(torch.from_numpy(encode_texts(prompts)).to(device))
    features = torch.cat([network.image(normalise(part).to(device)) for part in tiles.split(90)])
    found = (network.project_image(features) @ text.T).argmax(dim=1).cpu().numpy()
    return float((found == labels).mean())


def save(network: TinyVL, path: Path) -> None:
    """Weights in half precision."""
    from safetensors.torch import save_file

    state = {key: value.detach().cpu().half().contiguous() for key, value in network.state_dict().items()}
    with atomic_path(path) as temporary:
        save_file(state, temporary, metadata={"trained_on": "synthetic tiles of histobench"})


if __name__ == "__main__":
    main()
