"""The same promises on a GPU; skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.features.feature_extraction import extract
from histobench.roi.features.feature_file import load
from histobench.roi.features.inference import tuning
from histobench.roi.features.inference.forward import Forward, pin
from histobench.roi.features.inference.tuning import largest_batch
from histobench.roi.features.loading.loading_pool import Layout, SharedMemory, arrays_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Make = Callable[..., RoiDataset]


@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.9999), ("bf16", 0.999), ("fp16", 0.999)])
@pytest.mark.parametrize("compile", ["off", "on"])
def test_features_are_close_to_those_of_the_cpu(
    make_dataset: Make,
    encoder_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    least: float,
    compile: str,
) -> None:
    dataset = make_dataset(40, 13)
    embeddings = []
    for device, settings in (("cpu", {}), ("cuda:0", {"precision": precision, "compile": compile})):
        encoder = create_encoder(f"{encoder_file}:Tiny")
        done = extract(dataset, encoder, tmp_path / device, device=device, batch_size=8, **settings)
        embeddings.append(torch.cat([load(item.path).embeddings for item in done]))
    assert float(torch.nn.functional.cosine_similarity(*embeddings).min()) >= least


def test_exact_mode_repeats_itself_bit_for_bit(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, files = make_dataset(40, 13), []
    for attempt in ("one", "two"):
        monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / f"cache-{attempt}"))
        encoder = create_encoder(f"{encoder_file}:Tiny")
        settings = {"device": "cuda:0", "batch_size": 8, "precision": "fp32", "compile": "off"}
        done = extract(dataset, encoder, tmp_path / attempt, **settings)  # type: ignore[arg-type]
        files.append([item.path.read_bytes() for item in done])
    assert files[0] == files[1]


def test_real_memory_that_runs_out_halves_the_batch(encoder_file: Path) -> None:
    forward = Forward(create_encoder(f"{encoder_file}:Tiny"), device="cuda:0", precision="fp32", batch=4096)
    pixels = torch.randint(0, 256, (4096, 28, 28, 3), dtype=torch.uint8)
    whole = forward.finish(forward.start(pixels, 4096))
    torch.cuda.empty_cache()
    # What is allocated now, and little more: a whole batch needs about 150 MB.
    room = torch.cuda.memory_reserved() + 64 * 2**20
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    try:
        halved = forward.finish(forward.start(pixels, 4096))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert forward.batch < 4096
    torch.testing.assert_close(halved, whole, rtol=1e-4, atol=1e-5)


def test_the_largest_batch_is_found(encoder_file: Path) -> None:
    forward = Forward(create_encoder(f"{encoder_file}:Tiny"), device="cuda:0", precision="bf16", batch=8)
    assert largest_batch(forward, (28, 28, 3), torch.uint8, 5000) == tuning.LARGEST


def test_the_ring_can_be_page_locked() -> None:
    layout = Layout(2, 4, ((28, 28, 3),), ("uint8",))
    memory = SharedMemory()
    ring = arrays_of(layout, memory.allocate(layout.nbytes))
    with pin(ring, "cuda:0") as locked:
        assert locked
        assert torch.from_numpy(ring[1][0]).is_pinned()
    memory.close()
