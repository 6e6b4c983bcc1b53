"""KEEP: joint features, checkpoint layouts and tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from histobench.roi.encoders.networks import keep

pytestmark = pytest.mark.nightly

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "lung", "tissue", "tum", "##our", ".", "an"]


@pytest.fixture(scope="module")
def network() -> keep.Keep:
    torch.manual_seed(0)
    return keep.build(depth=1).eval()


@pytest.mark.nightly
@torch.no_grad()
def test_image_feature_is_the_normalised_head_of_cls(network: keep.Keep) -> None:
    images = torch.randn(2, 3, 224, 224)
    features = network(images)
    cls = network.visual.forward_features(images)[:, 0]
    hidden = F.gelu(cls @ network.visual_head[0].weight.T + network.visual_head[0].bias)
    out = hidden @ network.visual_head[2].weight.T + network.visual_head[2].bias
    torch.testing.assert_close(features, out / out.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(network.project_image(features), features)


@pytest.mark.nightly
@torch.no_grad()
def test_text_feature_is_normalised_and_independent_of_padding(network: keep.Keep) -> None:
    ids = torch.tensor([[2, 5, 6, 3]])
    features = network.encode_text(inputs(ids))
    padded = network.encode_text(inputs(F.pad(ids, (0, 12))))
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(1))
    torch.testing.assert_close(padded, features)


def inputs(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "attention_mask": (ids != 0).long()}


@pytest.mark.nightly
def test_both_names_of_the_layer_scale_load(network: keep.Keep) -> None:
    state = network.state_dict()
    hub = {name.replace(".gamma", ".weight"): tensor for name, tensor in state.items()}
    assert "visual.blocks.0.ls1.weight" in hub
    hub["text.embeddings.position_ids"] = torch.arange(512)[None]
    assert keep.from_upstream(hub).keys() == state.keys()
    assert keep.from_upstream(state).keys() == state.keys()


def test_tokens_of_a_word_list_and_of_a_tokenizer_file_are_the_same(tmp_path: Path) -> None:
    from tokenizers import BertWordPieceTokenizer

    words = tmp_path / "vocab.txt"
    words.write_text("\n".join(WORDS) + "\n")
    BertWordPieceTokenizer(str(words), lowercase=True).save(str(tmp_path / "tokenizer.json"))
    texts = ["An lung TUMOUR.", "tissue " * 400]
    first = keep.load_tokenizer({"vocab.txt": words})(texts)
    second = keep.load_tokenizer({"tokenizer.json": tmp_path / "tokenizer.json"})(texts)
    assert first["input_ids"].shape == (2, 256)
    assert first["input_ids"][0, :8].tolist() == [2, 10, 5, 7, 8, 9, 3, 0]
    assert first["attention_mask"][0].sum() == 7
    assert first["input_ids"][1, -1] == 3, "a cut text still ends with [SEP]"
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        assert torch.equal(first[name], second[name])
