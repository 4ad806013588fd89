"""Classifiers of sequences: of vectors (T, D), or of tokens (T,), integers below `vocabulary`, which are embedded."""

from __future__ import annotations

from sparkdl.nn.attention import PositionalEncoding
from sparkdl.nn.dense import Dense
from sparkdl.nn.embedding import Embedding
from sparkdl.nn.layer import Layer, Shape
from sparkdl.nn.layer_norm import LayerNorm
from sparkdl.nn.pool import GlobalAvgPool
from sparkdl.nn.recurrent import LSTM
from sparkdl.nn.transformer import TransformerBlock
from sparkdl.nn.zoo.parts import checked, dropped

__all__ = ["lstm_classifier", "transformer_classifier"]


def lstm_classifier(
    in_shape: Shape,
    classes: int,
    units: int = 128,
    layers: int = 2,
    bidirectional: bool = False,
    dropout: float = 0.0,
    vocabulary: int | None = None,
    dim: int = 128,
    padding: bool = False,
) -> Layer:
    """Stacked LSTMs, and logits (classes,) from the output of the last step.

    in_shape (T, D); or (T,) with a `vocabulary`, whose tokens become vectors of `dim` entries. With `padding` token 0
    stands for no token, or a step of zeros for no step, and is passed over. `dropout` is that before the logits.
    """
    embedding = _embedding("lstm_classifier", in_shape, vocabulary, dim, padding)
    lstm = LSTM(units, layers, bidirectional, mask_value=0.0 if padding else None)
    return checked([*embedding, lstm, *dropped(dropout), Dense(classes)], in_shape)


def transformer_classifier(
    in_shape: Shape,
    classes: int,
    dim: int = 128,
    heads: int = 4,
    blocks: int = 2,
    dropout: float = 0.0,
    vocabulary: int | None = None,
    padding: bool = False,
) -> Layer:
    """Transformer blocks over steps whose positions are encoded; the mean of the steps, normalised; logits (classes,).

    in_shape (T, D), whose steps a dense layer brings to `dim` entries; or (T,) with a `vocabulary`, whose tokens are
    embedded. With `padding` token 0 stands for no token, which nothing attends to; it needs a vocabulary. `dropout` is
    that of the blocks.
    """
    if padding and vocabulary is None:
        raise ValueError("transformer_classifier(padding=True) is for tokens; give the size of their vocabulary.")
    mark = 0.0 if padding else None
    embedding = _embedding("transformer_classifier", in_shape, vocabulary, dim, padding) or [Dense(dim)]
    body = [TransformerBlock(heads, dropout=dropout, mask_value=mark) for _ in range(blocks)]
    ends = [GlobalAvgPool(mark), LayerNorm(), Dense(classes)]
    return checked([*embedding, PositionalEncoding(mask_value=mark), *body, *ends], in_shape)


def _embedding(name: str, in_shape: Shape, vocabulary: int | None, dim: int, padding: bool) -> list[Layer]:
    """The embedding of tokens (T,); nothing for vectors (T, D)."""
    if len(in_shape) != (2 if vocabulary is None else 1):
        raise ValueError(
            f"{name} takes sequences (T, D), or tokens (T,) with their vocabulary; got samples of shape "
            f"{tuple(in_shape)} with vocabulary={vocabulary}."
        )
    return [] if vocabulary is None else [Embedding(vocabulary, dim, padding_idx=0 if padding else None)]
