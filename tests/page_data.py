"""What the pages and messages take for granted: data in the folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image


def draw_data(folder: Path, *, masks: bool) -> None:
    """Images of 36 patients in class folders, the tables that pages name, tasks for agents, features."""
    rows = []
    for number, name in enumerate(("normal", "stroma", "tumor")):
        (folder / "my_data" / name).mkdir(parents=True)
        for image in range(0, 24, 6 if masks else 1):  # Segmentation takes seconds per image
            draw = np.random.default_rng(100 * number + image)
            path = folder / "my_data" / name / f"patient{image % 12:02}_{image}.png"
            pixels = draw.integers(60 * number, 60 * number + 120, (48, 48, 3)).astype("uint8")
            Image.fromarray(pixels).save(path)
            mask = path.with_suffix(".npy")
            if masks:
                half = np.where(np.arange(48) < 24, number, 0).astype("uint8")
                np.save(mask, half[None].repeat(48, axis=0))
            patient, split = f"{name}{image % 12}", "test" if image % 12 >= 6 else "train"
            clinical = (40 + 10 * number + image % 12, 1 + image % 12 + 5 * number, image % 2)
            more = (*clinical, "AB"[image // 12], *([mask] if masks else []))
            rows.append(",".join(map(str, (path, name, split, patient, *more))))
    head = f"image_path,label,split,group,age,time,event,scanner{',mask_path' if masks else ''}"
    for table in ("tiles.csv", "crc.csv"):
        (folder / table).write_text("\n".join([head, *rows]) + "\n")
    (folder / "classes.json").write_text('{"0": "background", "1": "stroma", "2": "tumor"}')
    (folder / "plan.yaml").write_text(
        "datasets: [{name: tiles, source: tiles.csv}]\nencoders: [tiny-vl]\ntasks: [KNN]\nresults: results\n"
    )
    (folder / "prices.yaml").write_text("MODEL: [0.1, 0.1]\ngpt-4o-mini: [0.1, 0.1]\n")
    contrast = {"name": "mine", "measure": "u_wrong", "arm": "weak", "against": "strong"}
    (folder / "contrasts.json").write_text(json.dumps([contrast]))
    slides = [f"S{k:02d}" for k in range(40)]
    (folder / "labels.csv").write_text(
        "image_path,label,split,group\n"
        + "".join(f"{s},{'ab'[k % 2]},{'test' if k >= 20 else 'train'},P{k}\n" for k, s in enumerate(slides))
    )
    features = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
    np.savez(folder / "features.npz", features=features, img_names=slides)
    (folder / "TRIDENT" / "features_uni_v1").mkdir(parents=True)
    for slide, row in zip(slides, features, strict=True):
        np.save(folder / "TRIDENT" / "features_uni_v1" / f"{slide}.npy", row)
    for name in ("gsm8k", "hotpotqa", "humaneval", "math", "mbpp", "mmlu", "theoremqa"):
        task = {"id": 0, "prompt": "def f():", "reference": "assert f() == 7", "answer_type": "integer"}
        if name not in ("humaneval", "mbpp"):
            task |= {"prompt": "3 + 4?", "reference": 7 if name == "theoremqa" else "7"}
        (folder / "data" / "processed" / name).mkdir(parents=True)
        (folder / "data" / "processed" / name / "test_prompts.json").write_text(json.dumps(task) + "\n")
