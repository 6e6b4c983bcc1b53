"""Fine-tuning with LoRA against a plain peft loop: images per second with the same network and batch.

usage: python benchmarks/speed/fine_tune.py [--encoder uni_v1] [--images 5000] [--epochs 2] [--batch 32]
       [--size N] [--device cuda:0]

The network has random weights and the images are noise: neither changes the time. The plain loop has its
images as uint8 in memory as well, and the same precision.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from peft import LoraConfig, get_peft_model

from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.lora import add_lora, target_modules
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.protocols.head_training import Labels, Trainer, features_of, on_device

CLASSES = 9


def plain_seconds(
    encoder: BasePatchEncoder, pixels: np.ndarray, labels: torch.Tensor, args: argparse.Namespace
) -> float:
    """What a person writes with peft."""
    transform = encoder.eval_transforms
    targets = target_modules(encoder)
    model = get_peft_model(encoder, LoraConfig(r=16, lora_alpha=16, target_modules=targets)).to(args.device)
    head = torch.nn.Linear(encoder.embed_dim, CLASSES).to(args.device)
    weights = [*head.parameters(), *(weight for weight in model.parameters() if weight.requires_grad)]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    kind = torch.device(args.device).type
    began = time.perf_counter()
    for _ in range(args.epochs):
        for rows in torch.randperm(len(pixels)).split(args.batch):
            images = transform.normalise(torch.from_numpy(pixels[rows.numpy()]).to(args.device))
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
                logits = head(model(images))
            loss = torch.nn.functional.cross_entropy(logits.float(), labels[rows.to(args.device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    _wait(args.device)
    return time.perf_counter() - began


def own_seconds(
    encoder: BasePatchEncoder, pixels: np.ndarray, labels: torch.Tensor, args: argparse.Namespace
) -> float:
    """The loop of the task Fine-tune."""
    lora = add_lora(encoder.to(args.device), rank=16, alpha=16)
    precision = "bf16" if torch.device(args.device).type == "cuda" else "fp32"
    encode = on_device(encoder, pixels, device=args.device, precision=precision)
    frozen = features_of(encode, torch.arange(len(pixels)))
    goal = Labels(labels, [str(label) for label in range(CLASSES)])
    moments = frozen.mean(dim=0), frozen.std(dim=0)
    trainer = Trainer(encode, goal, *moments, args.epochs, args.batch, lora=lora)
    trainer.train(np.arange(len(pixels)), [1e-4], 0)
    return trainer.spent[0]


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="uni_v1")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    speeds = {}
    for name, seconds_of in (("plain peft", plain_seconds), ("histobench", own_seconds)):
        encoder = create_encoder(args.encoder, resize_size=args.size, allow_random=True)
        side = encoder.eval_transforms.crop
        generator = np.random.default_rng(0)
        pixels = generator.integers(0, 256, (args.images, side, side, 3), dtype=np.uint8)
        labels = torch.from_numpy(generator.integers(0, CLASSES, args.images)).to(args.device)
        speeds[name] = args.images * args.epochs / seconds_of(encoder, pixels, labels, args)
        print(f"{name}: {speeds[name]:.1f} images/s")
    print(f"histobench / plain: {speeds['histobench'] / speeds['plain peft']:.2f}")


if __name__ == "__main__":
    main()
