"""CTransPath: a Swin-T whose patch embedding is a small convolutional stem (Wang et al. 2022).

    image 224 px -> conv 3x3/2, conv 3x3/2, conv 1x1 -> Swin-T (2, 2, 6, 2 blocks, window 7) -> mean -> 768

Checkpoints exist in two layouts: the authors' and CHIEF's (timm 0.5) and a mirror (timm 1.x, used here).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

DEPTHS = (2, 2, 6, 2)
WINDOW = 7
#: 4 px patches, halved three times, in windows of 7: sides that this number divides need no padding.
SIDE = 4 * 2**3 * WINDOW

#: Tables that timm 0.5 stored and current timm computes.
COMPUTED = re.compile(r"layers\.\d+\.blocks\.\d+\.(attn_mask|attn\.relative_position_index)")
#: A classifier that was never trained; the published files leave it out, a fresh network has one.
CLASSIFIER = re.compile(r"head\.(fc\.)?(weight|bias)")
DOWNSAMPLE = re.compile(r"layers\.(\d+)\.downsample\.")


class ConvStem(nn.Module):
    """Two strided 3x3 convolutions with batch norm, one 1x1 convolution: 4 px patches, channels last."""

    def __init__(self, *, in_chans: int, embed_dim: int, norm_layer: Any, **_: Any) -> None:
        super().__init__()
        narrow, wide = embed_dim // 8, embed_dim // 4
        self.proj = nn.Sequential(
            nn.Conv2d(in_chans, narrow, kernel_size=3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, wide, kernel_size=3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, embed_dim, kernel_size=1),
        )
        self.norm = norm_layer(embed_dim)
        self.grid_size = (SIDE // 4, SIDE // 4)

    def set_input_size(self, img_size: tuple[int, int], patch_size: None = None) -> None:
        self.grid_size = (img_size[0] // 4, img_size[1] // 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


class CTransPath(SwinTransformer):
    def __init__(self, *, depths: tuple[int, ...]) -> None:
        super().__init__(
            img_size=SIDE,
            depths=depths,
            window_size=WINDOW,
            embed_layer=ConvStem,
            num_classes=0,
            strict_img_size=False,
        )

    def forward(self, images: Tensor, *, output: str = "default") -> Tensor:
        """Images of 224 px or a multiple to [b, 768]."""
        self._fit(images)
        return super().forward(images)

    def patch_tokens(self, images: Tensor) -> Tensor:
        self._fit(images)
        return self.forward_features(images).permute(0, 3, 1, 2)

    def _fit(self, images: Tensor) -> None:
        height, width = images.shape[-2:]
        if height % SIDE or width % SIDE:
            raise ValueError(f"ctranspath takes images whose sides {SIDE} divides, not {width} x {height} px")
        if (height // 4, width // 4) != self.patch_embed.grid_size:
            # The last stage shifts its windows only when the image holds more than one of them.
            self.set_input_size(img_size=(height, width), window_size=(WINDOW, WINDOW))


def build(*, depth: int | None = None) -> CTransPath:
    return CTransPath(depths=DEPTHS if depth is None else tuple(min(blocks, depth) for blocks in DEPTHS))


def from_upstream(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `build` out of either layout: timm 0.5 ended a stage with its down-sampling."""
    old = any(name.startswith("layers.0.downsample.") for name in state)

    def renamed(name: str) -> str:
        return DOWNSAMPLE.sub(lambda match: f"layers.{int(match[1]) + 1}.downsample.", name) if old else name

    return {
        renamed(name): tensor
        for name, tensor in state.items()
        if not COMPUTED.fullmatch(name) and not CLASSIFIER.fullmatch(name)
    }
