"""Linear layers with 8-bit weights: half the memory of bfloat16, and half the bytes to read in a pass.

Symmetric, with one scale for each output: weight = scale * stored, where `stored` is float8_e4m3fn or int8. Only the
layers of the blocks are quantised. Embedding and head stay in the model's dtype: a lookup reads few rows of the
embedding, and the head makes the logits, whose margins decide commits. Activations are never rounded.

On a CUDA device with Triton, a few rows are multiplied with the stored bytes themselves (kernels/quantized.py). For
many rows, and on any other device, the weights are widened first. So quantisation serves small batches with a cache,
and models that would not fit otherwise; docs/performance.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int32, Num
from torch import Tensor, nn

from unmask.device import with_kernel
from unmask.errors import UnknownName, UnmaskError

FORMATS = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
# Inputs are padded to a multiple of this many, so that what the kernel reads is aligned.
_GRAIN = 64
# Outputs whose weights are in float32 at a time while they are quantised.
_PIECE = 256
# Above this many rows it is faster to widen the weights and leave the product to the vendor's library. With fewer, down
# to about 64, either way is slower than weights that are wide already.
FEW_ROWS = 256


def check_format(quantize: str | None, device: torch.device) -> None:
    """Refuse an unknown format, or one that the device does not have."""
    if quantize is not None and quantize not in FORMATS:
        raise UnknownName("quantisation", str(quantize), FORMATS)
    if quantize == "fp8" and device.type == "mps":
        raise UnmaskError("quantize='fp8' is not for mps, which has no such numbers; use quantize='int8'")


def quantize_rows(weight: Float[Tensor, "n k"], kind: torch.dtype) -> tuple[Num[Tensor, "n k"], Float[Tensor, " n"]]:
    """The nearest stored numbers, and the scale of each row: its largest weight becomes the largest number."""
    largest = _LARGEST[kind]
    stored, scale = torch.empty_like(weight, dtype=kind), weight.new_empty(len(weight), dtype=torch.float32)
    for piece, into, scales in zip(weight.split(_PIECE), stored.split(_PIECE), scale.split(_PIECE), strict=True):
        wide = piece.float()
        scales.copy_(wide.abs().amax(1) / largest)
        ratio = wide / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        into.copy_((ratio if kind.is_floating_point else ratio.round()).clamp(-largest, largest))
    return stored, scale


def interleave(stored: Num[Tensor, "n k"]) -> Num[Tensor, "n kk"]:
    """Reorder rows as the kernel reads them: with Q words of four bytes, byte j of word q belongs to input j Q + q."""
    padded = F.pad(stored.view(torch.int8), (0, -stored.shape[1] % _GRAIN))
    return padded.unflatten(1, (4, -1)).transpose(1, 2).flatten(1).view(stored.dtype)


def deinterleave(stored: Num[Tensor, "n kk"], k: int) -> Num[Tensor, "n k"]:
    plain = stored.view(torch.int8).unflatten(1, (-1, 4)).transpose(1, 2).flatten(1)[:, :k]
    return plain.contiguous().view(stored.dtype)


@with_kernel
def product(
    x: Float[Tensor, "*rows k"],
    stored: Num[Tensor, "n kk"],
    scale: Float[Tensor, " n"],
    bias: Float[Tensor, " n"] | None,
    arrived: Int32[Tensor, " tiles"],
) -> Float[Tensor, "*rows n"]:
    """The linear layer with the stored weights. `arrived` are a kernel's counters, zeros before and after."""
    return F.linear(x, widened(stored, scale, x.shape[-1], x.dtype), bias)


@with_kernel
def widened(
    stored: Num[Tensor, "n kk"], scale: Float[Tensor, " n"], k: int, dtype: torch.dtype
) -> Float[Tensor, "n k"]:
    """The weights, scaled, in a dtype."""
    return (deinterleave(stored, k).float() * scale[:, None]).to(dtype)


class QuantizedLinear(nn.Module):
    """Takes the place of an nn.Linear."""

    stored: Tensor
    scale: Tensor
    arrived: Tensor

    def __init__(self, linear: nn.Linear, quantize: str) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        stored, scale = quantize_rows(linear.weight.detach(), FORMATS[quantize])
        self.register_buffer("stored", interleave(stored))
        self.register_buffer("scale", scale)
        self.bias = linear.bias
        # Counters that a launch leaves as it finds them, at zero.
        tiles = -(-self.out_features // 64) * (FEW_ROWS // 64)
        self.register_buffer("arrived", torch.zeros(tiles, dtype=torch.int32, device=scale.device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        """The buffers move to another device with the model, but `model.to(dtype)` leaves their dtypes alone."""
        return super()._apply(lambda x: fn(x) if isinstance(x, nn.Parameter) else x.to(fn(x).device), recurse)

    def forward(self, x: Float[Tensor, "*rows k"]) -> Float[Tensor, "*rows n"]:
        return product(x, self.stored, self.scale, self.bias, self.arrived)


def bytes_to_load(model: nn.Module, quantize: str | None) -> int:
    """Memory to load a model: with `quantize`, the quantised model and one layer that is not quantised yet."""
    needed, linears = sum(parameter.nbytes for parameter in model.parameters()), linears_of(model) if quantize else []
    for linear in linears:
        n, k = linear.weight.shape
        needed += n * (k + -k % _GRAIN + 4) - linear.weight.nbytes  # a byte for each input, and a scale
    return needed + max((linear.weight.nbytes for linear in linears), default=0)


def linears_of(model: nn.Module) -> list[nn.Linear]:
    """The layers that are quantised."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or not len(blocks):
        raise UnmaskError(f"quantize needs layers in a ModuleList `blocks`; {type(model).__name__} has none")
    return [module for module in blocks.modules() if isinstance(module, nn.Linear)]
