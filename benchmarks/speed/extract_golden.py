"""Do the fast paths of extraction change a prediction? Real images, stored features, KNN of 20 neighbours.

    python benchmarks/speed/extract_golden.py [--device cuda:0] [--shared ../shared]

Per dataset and precision: the least cosine to the stored features, and on how many test images the nearest
neighbours vote for the same class. Goals: cosine >= 0.9999 (fp32) and >= 0.999 (bf16); >= 99.5% of the votes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.features.feature_extraction import extract
from histobench.roi.features.feature_file import load

DATASETS = ("lunghist700", "lc25000")
ROOT = Path(__file__).resolve().parents[2]


def votes(train: Tensor, labels: Tensor, test: Tensor, *, neighbours: int = 20) -> Tensor:
    """The class most of the nearest training images have, after centring and scaling to length 1."""
    centre = train.mean(0)
    train, test = (torch.nn.functional.normalize(rows - centre, dim=1) for rows in (train, test))
    nearest = torch.cdist(test, train).topk(min(neighbours, len(train)), largest=False).indices
    return torch.nn.functional.one_hot(labels[nearest]).sum(1).argmax(1)


def golden(shared: Path, name: str, limit: int | None) -> tuple[RoiDataset, dict[str, Tensor]]:
    """The images of a golden set with their stored features and labels."""
    stored = np.load(shared / "golden" / "roi" / f"{name}_efficientnet-lite0.npz")
    files = {path.name: path for path in (shared / "data" / name).rglob("*.*")}
    splits, tensors = {}, {}
    for split in ("train", "test"):
        names, labels = (stored[f"{split}_{what}"][:limit] for what in ("names", "labels"))
        splits[split] = tuple(
            RoiImage(files[Path(str(file)).name], int(label), str(file), str(file))
            for file, label in zip(names, labels, strict=True)
        )
        tensors[split] = torch.from_numpy(stored[f"{split}_embeddings"][:limit])
    tensors["labels"] = torch.from_numpy(stored["train_labels"][:limit]).long()
    classes = tuple(str(number) for number in range(int(stored["train_labels"].max()) + 1))
    return RoiDataset(name, classes, splits), tensors


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="folder of reference data"
    )
    parser.add_argument("--device", help="default: the GPU if there is one")
    parser.add_argument("--precisions", nargs="*", default=["fp32", "bf16"])
    parser.add_argument("--limit", type=int, help="only so many images per split")
    args = parser.parse_args()
    print("| dataset | precision | images | least cosine | same KNN votes |\n|---|---|---|---|---|")
    for name in DATASETS:
        dataset, stored = golden(args.shared, name, args.limit)
        expected = votes(stored["train"], stored["labels"], stored["test"])
        for precision in args.precisions:
            encoder = create_encoder("efficientnet-lite0")
            with tempfile.TemporaryDirectory() as folder:
                files = extract(dataset, encoder, folder, device=args.device, precision=precision)
                train, test = (load(item.path) for item in files)
            cosine = min(
                float(torch.nn.functional.cosine_similarity(new.embeddings, stored[split]).min())
                for new, split in ((train, "train"), (test, "test"))
            )
            same = votes(train.embeddings, train.labels, test.embeddings) == expected
            share = float(same.float().mean())
            print(f"| {name} | {precision} | {len(test)} | {cosine:.6f} | {share:.1%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
