"""CONCH block by block, against the formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from histobench.roi.encoders.construct import SkipRandomInit
from histobench.roi.encoders.networks import conch

pytestmark = pytest.mark.nightly


def test_pooler_is_one_attention_of_normed_queries_over_normed_tokens(slow: Any, scramble: Any) -> None:
    pooler = scramble(conch.AttentionalPooler(16, 24, queries=3, heads=4))
    tokens = torch.randn(2, 5, 24)
    attention = pooler.attn
    bias_q, bias_k, bias_v = attention.in_proj_bias.chunk(3)
    query = slow.linear(
        slow.layer_norm(slow.array(pooler.query), pooler.ln_q, 1e-5), attention.q_proj_weight, bias_q
    )
    for got, image in zip(slow.array(pooler(tokens)), slow.array(tokens), strict=True):
        context = slow.layer_norm(image, pooler.ln_k, 1e-5)
        heads = slow.attention(
            query,
            slow.linear(context, attention.k_proj_weight, bias_k),
            slow.linear(context, attention.v_proj_weight, bias_v),
            heads=4,
        )
        expected = slow.linear(heads, attention.out_proj.weight, attention.out_proj.bias)
        assert got == pytest.approx(expected, abs=1e-5)


def test_text_tower_is_causal_blocks_and_a_final_cls(slow: Any, scramble: Any) -> None:
    tower = scramble(conch.TextTower(depth=2, width=16, heads=2, out_dim=6))
    tokens = torch.tensor([[1, 70, 80, 2, 0, 0], [1, 90, 91, 92, 93, 2]])
    got = slow.array(tower(tokens))
    for features, ids in zip(got, tokens.tolist(), strict=True):
        x = slow.array(tower.token_embedding.weight[ids])
        x = torch.cat([torch.from_numpy(x), tower.cls_emb.detach().double()[None]]).numpy()
        x = x + slow.array(tower.positional_embedding[: len(x)])
        for block in tower.transformer["resblocks"]:
            x = slow_text_block(slow, block, x, ids)
        pooled = slow.layer_norm(x[-1], tower.ln_final, 1e-5)
        assert features == pytest.approx(pooled @ slow.array(tower.text_projection), abs=1e-4)


def slow_text_block(slow: Any, block: Any, x: Any, ids: list[int]) -> Any:
    def sees(query: int, key: int) -> bool:
        if query < len(ids):
            return key <= query
        # The CLS row's padding mask lies one place to the right of the text.
        return key == 0 or ids[key - 1] != 0

    normed = slow.layer_norm(x, block.ln_1, 1e-5)
    weights, biases = block.attn.in_proj_weight.chunk(3), block.attn.in_proj_bias.chunk(3)
    query, key, value = (slow.linear(normed, w, b) for w, b in zip(weights, biases, strict=True))
    heads = slow.attention(query, key, value, heads=2, sees=sees)
    x = x + slow.linear(heads, block.attn.out_proj.weight, block.attn.out_proj.bias)
    hidden = slow.linear(slow.layer_norm(x, block.ln_2, 1e-5), block.mlp.c_fc.weight, block.mlp.c_fc.bias)
    return x + slow.linear(slow.gelu(hidden), block.mlp.c_proj.weight, block.mlp.c_proj.bias)


def test_cls_sees_one_padding_place_and_itself_only_when_the_text_is_full() -> None:
    blocked = conch.blocked_attention(torch.tensor([[1, 5, 2, 0, 0], [1, 5, 6, 7, 2]]))
    assert (~blocked[0, -1]).tolist() == [True, True, True, True, False, False]
    assert (~blocked[1, -1]).tolist() == [True] * 6


@pytest.fixture(scope="module")
def network(scramble: Any) -> Any:
    with SkipRandomInit():
        return scramble(conch.build(depth=1))


def test_image_feature_is_not_normalised_and_its_projection_is(network: conch.Conch) -> None:
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        stored = network(images)
        projected = network.project_image(stored)
    assert stored.shape == (2, 512)
    assert (stored.norm(dim=-1) - 1).abs().min() > 0.1
    torch.testing.assert_close(projected.norm(dim=-1), torch.ones(2))
    expected = F.normalize(stored @ network.visual.proj_contrast, dim=-1)
    torch.testing.assert_close(projected, expected)


def test_text_features_are_normalised_and_ignore_the_last_place(network: conch.Conch) -> None:
    tokens = torch.randint(3, 32007, (2, 128))
    with torch.no_grad():
        features = network.encode_text(tokens)
        tokens[:, -1] = 7
        again = network.encode_text(tokens)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(2))
    torch.testing.assert_close(features, again)


def test_decoder_tensors_are_dropped_by_name_and_nothing_else_is() -> None:
    names = ["text_decoder.text_projection", "text_decoder.ln_final.weight", "text.cls_emb", "optimizer.step"]
    state = {name: torch.zeros(1) for name in names}
    assert list(conch.from_upstream(state)) == names[2:]


def test_positions_of_another_size_are_resampled() -> None:
    name = "visual.trunk.pos_embed"
    small = torch.randn(1, 1 + 14 * 14, 768)
    large = conch.from_upstream({name: small})[name]
    grid = small[:, 1:].unflatten(1, (14, 14)).permute(0, 3, 1, 2)
    expected = F.interpolate(grid, (28, 28), mode="bilinear", align_corners=False).flatten(2).mT
    torch.testing.assert_close(large[:, 1:], expected)
    torch.testing.assert_close(large[:, :1], small[:, :1])


def test_tokenizer_frames_pads_and_cuts(byte_level_tokenizer: Path) -> None:
    tokenize = conch.load_tokenizer({byte_level_tokenizer.name: byte_level_tokenizer})
    ids = tokenize(["ab", "Ab", "a " * 400, ""])
    assert ids.shape == (4, 128)
    assert ids[0].tolist() == ids[1].tolist()
    assert ids[0, 0] == 1
    assert (ids[:, -1] == 0).all()
    assert ids[2, 126] == 2, "a cut text still ends with the end token"
    assert (ids[2, :127] != 0).all()
    assert ids[3, :3].tolist() == [1, 2, 0]
