"""The gated product of many rows, with its gate in the same launch, for Hopper devices; fused.py has it for few rows.

Knows tensors only. Shapes depend on the host's numbers, memory comes from torch, and nothing waits for the device, so a
CUDA graph can capture it. `serves` says where it is faster than the vendor's library with `fused.gate`; that was
measured on Hopper devices only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)
# With fewer rows the kernel is not faster.
_MANY_ROWS = 256
# Share of the device that must have a tile at any time. With LLaDA-8B on 132 multiprocessors it is faster at 0.97 (256,
# 512 and 1280 rows) and slower at 0.87 (384 rows); shares between were not measured.
_BUSY = 0.95
_HOPPER = 9
# The first release of Triton with which this was measured; the oldest have no descriptors.
_TRITON = (3, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class WideTiles:
    """How the product is cut, in powers of two but for the programs: decides the speed only."""

    rows: int = 128
    columns: int = 256  # of the product, half of them for the gate
    inner: int = 64
    group: int = 16  # rows of tiles that pass over the matrix together
    programs: int | None = None  # that share the tiles; None: one for each multiprocessor
    warps: int = 8
    stages: int = 4


def serves(normed: Float[Tensor, "b n w"], weight: Float[Tensor, "both w"]) -> bool:
    """Whether `gated` takes these tensors and is faster."""
    b, n, _ = normed.shape
    if b * n < _MANY_ROWS or not takes(normed, weight) or not normed.is_cuda or not _is_measured(normed.device):
        return False
    return pays(b * n, weight.shape[0] // 2, _multiprocessors(normed.device))


def takes(normed: Float[Tensor, "b n w"], weight: Float[Tensor, "both w"]) -> bool:
    """Whether `gated` takes these tensors."""
    return (
        normed.dtype == weight.dtype
        and normed.dtype in _HALF
        # Descriptors need rows that begin at multiples of 16 bytes.
        and normed.shape[2] % 8 == weight.shape[0] // 2 % 8 == 0
        and all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in (normed, weight))
    )


def pays(rows: int, features: int, programs: int) -> bool:
    """Whether `gated` is faster on a device that runs so many programs at a time."""
    return rows >= _MANY_ROWS and _busy(_count(rows, features, WideTiles()), programs) >= _BUSY


def gated(
    normed: Float[Tensor, "b n w"], weight: Float[Tensor, "both w"], *, tiles: WideTiles | None = None
) -> Float[Tensor, "b n f"]:
    """The linear layer without a bias, then `fused.gate` of its result, with a silu that is a little less exact.

    A row of the result depends on its own row only.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    from unmask.models.kernels import wide_products

    b, n, w = normed.shape
    m, f, tiles = b * n, weight.shape[0] // 2, tiles or WideTiles()
    out = normed.new_empty(b, n, f)
    programs = tiles.programs or _multiprocessors(normed.device)
    count = _count(m, f, tiles)
    whole = _whole(count, programs)

    def described(tensor: Tensor, *block: int) -> Any:
        return TensorDescriptor.from_tensor(tensor, list(block))

    both, result, features = weight.view(2, f, w), out.view(m, f), tiles.columns // 2
    launch: Any = wide_products.gate_wide[(min(programs, 2 * count),)]  # no call that a type checker understands
    with torch.cuda.device_of(normed):
        launch(
            described(normed.view(m, w), tiles.rows, tiles.inner),
            *(described(both, 2, features, tiles.inner), described(result, tiles.rows, features)),
            *(described(both, 2, features // 2, tiles.inner), described(result, tiles.rows, features // 2)),
            *(m, w, f, whole),
            ROWS=tiles.rows,
            COLUMNS=tiles.columns,
            INNER=tiles.inner,
            GROUP=tiles.group,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return out


def _count(m: int, f: int, tiles: WideTiles) -> int:
    return -(-m // tiles.rows) * -(-2 * f // tiles.columns)


def _whole(count: int, programs: int) -> int:
    """The number of tiles that are not halved. The last tiles are halved if all halves can be computed at a time."""
    left = count % programs
    return count - left if 2 * left <= programs else count


def _busy(count: int, programs: int) -> float:
    """The share of the programs that have a tile, from the first to the last."""
    whole = _whole(count, programs)
    rounds = -(-whole // programs) + (0.5 if whole < count else 0.0)
    return count / (programs * rounds)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _is_measured(device: torch.device) -> bool:
    import triton

    release = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return torch.cuda.get_device_capability(device)[0] == _HOPPER and release >= _TRITON
