"""Compiles the kernels of the rule for NVIDIA devices, which needs none. Run as a script, without the interpreter.

Prints a line for every kernel and device: its name, the architecture, and the bytes of machine code.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from unmask.rules import triton_kernels

ROW = {"column_of": "*i32", "count": "*i32", "figures": "*fp32"}
OUT = {"commit_out": "*u8"} | dict.fromkeys(("score_out", "intensity_out", "margin_out", "overlap_out"), "*fp32")
STRIDES = {"stride_b": "i64", "stride_k": "i32"}
TILE = {"M": 32, "M_ROWS": 32, "K": 64, "K_ROWS": 64}


def kernels(logits):
    """Name, types of the arguments, constants and warps of each."""
    read = {"logits": logits, "masked": "*u8", "pieces": "*fp64", "column_of": "*i32", "count": "*i32", **STRIDES}
    yield "piece_figures", read | dict.fromkeys("mkv", "i32"), {"K": 32, "W": 4096}, 4
    yield "row_figures", {"pieces": "*fp64", **ROW, "m": "i32", "n_pieces": "i32"}, {"P": 32}, 1
    pairs = {"logits": logits, **ROW, "sums": "*fp32", **STRIDES, "m": "i32", "v": "i32"}
    yield "pair_sums", pairs, {"CHUNK": 1024, "W": 64}, 1
    sums = {"sums": "*fp32", "count": "*i32", "overlap": "*fp32", "m": "i32"}
    yield "pair_overlaps", sums, {"CHUNKS": 149, "BLOCK": 128}, 4
    last = {"masked": "*u8", **ROW, "overlap": "*fp32", **OUT, "threshold": "fp32", "m": "i32", "k": "i32"}
    yield "settle", last, {"ITERATIONS": 2, "NORMALIZE": True, "BY_FIELD": False} | TILE, 4


def compile_for(architecture, logits):
    for name, types, constants, warps in kernels(logits):
        function = getattr(triton_kernels, name)
        signature = {argument: types.get(argument, "constexpr") for argument in function.arg_names}
        source = ASTSource(
            fn=function,
            signature=signature,
            constexprs={(function.arg_names.index(constant),): value for constant, value in constants.items()},
        )
        compiled = triton.compile(
            source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": warps, "enable_fp_fusion": True}
        )
        sys.stdout.write(f"{name} {architecture} {len(compiled.asm['cubin'])}\n")


compile_for(80, "*fp16")
compile_for(90, "*bf16")
