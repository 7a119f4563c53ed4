"""Compiles the kernels for NVIDIA devices, which needs none. Run as a script, without the interpreter.

Prints a line for every kernel and device: its name, the architecture, and the bytes of machine code.
"""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from unmask.models.kernels import attention, ops, products, wide
from unmask.rules.kernels import commit, marginals, overlap

MODULES = (
    overlap,
    commit,
    marginals,
    ops,
    attention,
    products,
    wide,
)
ROW = {"column_of": "*i32", "count": "*i32", "figures": "*fp32"}
OUT = {"commit_out": "*u8"} | dict.fromkeys(("score_out", "intensity_out", "margin_out", "overlap_out"), "*fp32")
STRIDES = {"stride_b": "i64", "stride_k": "i32"}
SIZES = ("m", "k", "width")
TILE = {"M": 32, "M_ROWS": 32, "K": 64, "K_ROWS": 64}


def kernels(logits):
    """Kernels of the rules: name, types of the arguments, constants and warps of each."""
    read = {"logits": logits, "masked": "*u8", "pieces": "*fp64", "column_of": "*i32", "count": "*i32", **STRIDES}
    yield "piece_figures", read | dict.fromkeys("mkv", "i32"), {"K": 32, "W": 2048}, 2
    yield "row_figures", {"pieces": "*fp64", **ROW, "m": "i32", "n_pieces": "i32"}, {"P": 64}, 1
    pairs = {"logits": logits, **ROW, "sums": "*fp32", **STRIDES, "m": "i32", "v": "i32", "tokens": "i32"}
    yield "pair_sums", pairs, {"WHOLE": True}, 1
    sums = {"sums": "*fp32", "count": "*i32", "overlap": "*fp32", "m": "i32", "width": "i32", "tiles": "i32"}
    yield "pair_overlaps", sums, {"CHUNKS": 165, "BLOCK": 128}, 4
    last = {"masked": "*u8", **ROW, "overlap": "*fp32", **OUT, "threshold": "fp32", **dict.fromkeys(SIZES, "i32")}
    options = {"ITERATIONS": 2, "NORMALIZE": True, "BY_FIELD": False} | TILE
    yield "commit_rows", last, options, 8
    yield "commit_rows_in_parts", last, options | {"M": 128}, 8

    parts = {"logits": logits, "parts": "*fp64", "stride": "i64", "v": "i32"}
    for best_two in (False, True):
        yield "piece_parts", parts, {"SPREAD": not best_two, "SECOND": best_two, "W": 4096}, 4
    row = {**parts, "tokens": "*i64", "out": "*fp32", "pieces": "i32"}
    for probability, entropy in ((True, False), (False, True), (False, False)):
        yield "row_figure", row, {"PROBABILITY": probability, "ENTROPY": entropy, "P": 32}, 1
    found = {"best": "*fp32", "token": "*i32"}
    yield "piece_best", {"logits": logits, **found, "stride": "i64", "v": "i32"}, {"W": 4096}, 4
    yield "row_best", {**found, "out": "*i64", "pieces": "i32"}, {"P": 32}, 1


def layer_kernels(dtype):
    """Kernels of the layers: name, types of the arguments, constants, warps and stages of each."""
    rows = {"x": dtype, "update": "*fp32", "weight": dtype, "sum_out": dtype, "normed_out": dtype}
    yield "add_norm_rows", rows | {"w": "i32", "eps": "fp32"}, {"PARTS": 2, "W": 4096}, 8, 3
    yield "gate_rows", {"gate_up": dtype, "out": dtype, "f": "i32"}, {"F": 1024}, 4, 3

    heads = {"H": 28, "G": 4, "D": 128}
    store = {"table": "*fp32", "positions": "*i64", "keys": dtype, "values": dtype, "slots": "*i64", "capacity": "i32"}
    turned = {"qkv": dtype, **store, "n": "i32", "rows": "i32"}
    yield "turn_heads", turned, {"HEADS": 16, "GIVEN": True, "STORE": True, **heads}, 4, 3
    splits = {"mixtures": "*fp32", "figures": "*fp32", "lengths": "*i64", "q": "i32", "split_size": "i32"}
    for kind, tile, stages in ((dtype, {"ROWS": 64, "KEYS": 64}, 3), ("*fp32", {"ROWS": 16, "KEYS": 32}, 2)):
        read = dict.fromkeys(("qkv", "keys", "values", "out"), kind) | {"slots": "*i64", "capacity": "i32"}
        yield "attend_split", read | splits | {"scale": "fp32"}, tile | heads, 4, stages
        rows = dict.fromkeys(("starts", "lengths", "seen"), "*i64") | {"n": "i32", "scale": "fp32"}
        for stored in (False, True):
            yield "attend_rows", read | rows, tile | heads | {"STORED": stored}, 4, stages
    yield "merge_splits", splits | {"out": dtype, "splits": "i32"}, {"H": 28, "D": 128}, 1, 3

    factors = {"x": dtype, "weight": dtype, "m": "i32", "k": "i32"}
    tile = {"ROWS": 32, "COLUMNS": 64, "INNER": 128, "EVEN": True}
    projected = factors | store | {"bias": dtype, "queries": dtype, "q": "i32", "turns": "i32"}
    yield "project_heads", projected, tile | heads | {"BIASED": True}, 4, 4
    yield "gate_product", factors | {"out": dtype, "f": "i32"}, tile, 4, 3
    for columns, stages in ((32, 5), (64, 4)):
        yield "part_product", factors | {"parts": "*fp32", "n": "i32"}, tile | {"COLUMNS": columns}, 4, stages


def wide_kernel(dtype):
    """The kernel of the gated product of many rows: name, types of the arguments, constants, warps and stages."""
    blocks = {"x": (128, 64), "weight": (2, 128, 64), "out": (128, 128), "half_weight": (2, 64, 64)}
    blocks |= {"half_out": (128, 64)}
    types = {name: f"tensordesc<{dtype}{list(block)}>" for name, block in blocks.items()}
    tile = {"ROWS": 128, "COLUMNS": 256, "INNER": 64, "GROUP": 16}
    return "gate_wide", types | dict.fromkeys(("m", "k", "f", "whole"), "i32"), tile, 8, 4


def compile_for(architecture, dtype):
    for kernel in kernels(dtype):
        compile_one(architecture, *kernel)
        if any(p.name in ("m", "tiles") and not p.do_not_specialize for p in _function(kernel[0]).params):
            sys.exit(f"{kernel[0]} would be compiled anew when fewer positions are open")
    for kernel in layer_kernels(dtype):
        compile_one(architecture, *kernel, aligned=True)


def compile_one(architecture, name, types, constants, warps, stages=3, *, aligned=False):
    """`aligned`: tensors and their rows begin at multiples of 16 bytes, which asynchronous copies need."""
    function = _function(name)
    whole = (
        [argument for argument, kind in types.items() if kind[0] == "*" or argument in {"f", "k", "w"}]
        if aligned
        else []
    )
    source = ASTSource(
        fn=function,
        signature={argument: types.get(argument, "constexpr") for argument in function.arg_names},
        constexprs={(function.arg_names.index(constant),): value for constant, value in constants.items()},
        attrs={(function.arg_names.index(argument),): [["tt.divisibility", 16]] for argument in whole},
    )
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    sys.stdout.write(f"{name} {architecture} {len(compiled.asm['cubin'])}\n")


def _function(name):
    return next(vars(module)[name] for module in MODULES if name in vars(module))


compile_for(80, "*fp16")
compile_for(90, "*bf16")
for half in ("bf16", "fp16"):
    compile_one(90, *wide_kernel(half), aligned=True)
