"""A small GPT: about one million parameters, tied embeddings, no dropout, so that a step depends on its batch alone."""

# Shapes: B rows, T positions, V vocabulary, D width, H heads.

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["GPT", "Shape"]


class Shape(NamedTuple):
    """The sizes of the model."""

    vocabulary: int = 4096
    context: int = 128
    width: int = 128
    heads: int = 4
    layers: int = 3


class Block(nn.Module):
    """Attention, then a feed-forward layer, each added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp_in = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.mlp_out = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        rows, positions, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(rows, positions, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, D / H)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, positions, width))
        hidden: Tensor = self.mlp_in(self.mlp_norm(x))
        out: Tensor = self.mlp_out(F.gelu(hidden))
        return x + out


class GPT(nn.Module):
    """Tokens to the scores of the tokens that follow."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                deep = name.endswith(("attention_out.weight", "mlp_out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if deep else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits, (B, T, V); tokens is int64 (B, T)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.token(tokens) + self.position(positions)))
        return F.linear(x, self.token.weight)  # the output layer is the token embedding itself
