"""The tokenizers of CLIP-like text towers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.spec import EncoderSpec


def clip_tokenizer(spec: EncoderSpec) -> Callable[[Sequence[str]], Tensor]:
    """OpenAI's byte-pair tokenizer, whose vocabulary comes with open_clip: token ids [n, context]."""
    try:
        from open_clip.tokenizer import SimpleTokenizer
    except ModuleNotFoundError as error:
        raise HistobenchError(
            f"zero-shot with {spec.name} needs open_clip_torch; run: pip install 'histobench[text]'"
        ) from error
    context = spec.text.context if spec.text else 77
    tokenizer = SimpleTokenizer(context_length=context)

    def tokenize(texts: Sequence[str]) -> Tensor:
        ids: Tensor = tokenizer(list(texts))
        return ids

    return tokenize


def wordpiece_tokenizer(file: Path, context: int) -> Callable[[Sequence[str]], Tensor]:
    """A BERT tokenizer from its `tokenizer.json` or `vocab.txt`: token ids [n, context], padded with 0."""
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    if file.suffix == ".txt":
        tokenizer = BertWordPieceTokenizer(str(file), lowercase=True)
    else:
        tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(context)
    tokenizer.enable_padding(length=context, pad_id=0)

    def tokenize(texts: Sequence[str]) -> Tensor:
        # open_clip joins runs of white space before it tokenizes.
        encoded = tokenizer.encode_batch([" ".join(text.split()) for text in texts])
        return torch.tensor([entry.ids for entry in encoded])

    return tokenize
