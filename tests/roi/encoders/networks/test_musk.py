"""MUSK block by block, against the formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from histobench.roi.encoders.networks import musk

pytestmark = pytest.mark.nightly


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(musk, "WIDTH", 16)
    monkeypatch.setattr(musk, "HEADS", 4)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("way", [musk.IMAGE, musk.TEXT])
def test_layer_is_sub_normed_attention_and_feed_forward_of_one_way(
    way: str, slow: Any, scramble: Any
) -> None:
    layer = scramble(musk.Layer())
    x = torch.randn(1, 6, 16)
    visible = torch.tensor([True, True, True, True, False, False]) if way == musk.TEXT else torch.ones(6) > 0
    got = slow.array(layer(x, way, visible[None, None, None, :]))[0]

    attention, plain = layer.self_attn, slow.array(x[0])

    def project(name: str, values: Any) -> Any:
        linear = getattr(getattr(attention, name), way)
        return slow.linear(values, linear.weight, linear.bias)

    normed = slow.layer_norm(plain, getattr(layer.self_attn_layer_norm, way), 1e-5)
    heads = slow.attention(
        project("q_proj", normed),
        project("k_proj", normed),
        project("v_proj", normed),
        heads=4,
        sees=lambda q, k: bool(visible[k]),
    )
    plain = plain + project("out_proj", slow.layer_norm(heads, getattr(attention.inner_attn_ln, way), 1e-5))
    ffn = getattr(layer.ffn, way)
    normed = slow.layer_norm(plain, getattr(layer.final_layer_norm, way), 1e-5)
    hidden = slow.gelu(slow.linear(normed, ffn.fc1.weight, ffn.fc1.bias))
    hidden = slow.layer_norm(hidden, ffn.ffn_layernorm, 1e-5)
    expected = plain + slow.linear(hidden, ffn.fc2.weight, ffn.fc2.bias)
    assert got == pytest.approx(expected, abs=1e-4)


def test_position_tables_start_at_their_third_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(musk, "WIDTH", 4)
    positions = musk.Positions(5)
    torch.testing.assert_close(positions.table(musk.IMAGE), positions.A.weight[2:7])
    torch.testing.assert_close(positions.table(musk.TEXT)[0], positions.B.weight[2])


def test_quarters_are_the_doubled_image_row_by_row(slow: Any) -> None:
    image = torch.randn(1, 2, 4, 4)
    large = slow.bicubic(slow.array(image[0].permute(1, 2, 0)), rows=8, columns=8, scale=(2.0, 2.0))
    quarters = [slow.array(part[0].permute(1, 2, 0)) for part in musk.enlarged_quarters(image)]
    expected = [large[:4, :4], large[:4, 4:], large[4:, :4], large[4:, 4:]]
    for got, want in zip(quarters, expected, strict=True):
        assert got == pytest.approx(want, abs=1e-5)


@pytest.fixture(scope="module")
def network() -> musk.Musk:
    torch.manual_seed(0)
    return musk.build(depth=1, image_size=64).eval()


@pytest.mark.nightly
@torch.no_grad()
def test_multi_scale_feature_is_cls_and_the_mean_over_quarters(network: musk.Musk) -> None:
    images = torch.randn(2, 3, 64, 64)
    both = network(images, output="ms")
    assert both.shape == (2, 2048)
    torch.testing.assert_close(both[:, :1024], network(images))
    quarters = [network(part) for part in musk.enlarged_quarters(images)]
    torch.testing.assert_close(both[:, 1024:], sum(quarters) / 4)


@pytest.mark.nightly
@torch.no_grad()
def test_projection_is_normalised_and_reads_the_first_scale_alone(network: musk.Musk) -> None:
    stored = torch.randn(3, 2048)
    projected = network.project_image(stored)
    torch.testing.assert_close(projected.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(projected, network.project_image(stored[:, :1024]))


@pytest.mark.nightly
@torch.no_grad()
def test_text_feature_is_normalised_and_independent_of_padding(network: musk.Musk) -> None:
    short = torch.tensor([[0, 50, 60, 2]])
    padded = torch.cat([short, torch.full((1, 9), musk.PAD)], dim=1)
    features = network.encode_text(short)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(1))
    torch.testing.assert_close(network.encode_text(padded), features)


@pytest.mark.nightly
@torch.no_grad()
def test_positions_of_a_checkpoint_are_resized_for_a_network_of_another_size(network: musk.Musk) -> None:
    images = torch.randn(1, 3, 96, 96)
    larger = musk.build(depth=1, image_size=96).eval()
    larger.load_state_dict(musk.from_upstream(network.state_dict(), image_size=96), strict=True)
    torch.testing.assert_close(larger(images), network(images))


def test_tokenizer_moves_ids_by_one_and_frames_pads_and_cuts(tmp_path: Path) -> None:
    pieces, path = train_pieces(tmp_path)
    ids = musk.load_tokenizer({path.name: path})(["lung tissue", "tumour ☃", "cell " * 300])
    plain = pieces.encode("lung tissue")
    expected = [0, *(piece + 1 for piece in plain), 2]
    assert ids.shape == (3, 100)
    assert ids[0].tolist() == expected + [1] * (100 - len(expected))
    assert musk.UNKNOWN in ids[1]
    assert ids[2, -1] == musk.END


def train_pieces(folder: Path) -> tuple[Any, Path]:
    import sentencepiece

    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(["lung tissue with tumour cells", "colon mucosa and stroma cell"] * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = folder / "tokenizer.model"
    return sentencepiece.SentencePieceProcessor(model_file=str(path)), path
