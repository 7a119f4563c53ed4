"""Compiles the product with quantised weights for NVIDIA devices, which needs none. Run as a script.

Prints a line for each format, dtype, number of rows and architecture: its stages, and the shared memory they take.
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from unmask.models.kernels import quantized
from unmask.models.quantized import FORMATS

INT8, FP8 = FORMATS["int8"], FORMATS["fp8"]


def compile_kernels() -> None:
    names = {torch.bfloat16: "*bf16", torch.float16: "*fp16"}
    cases = [(kind, torch.bfloat16, rows) for kind in (INT8, FP8) for rows in (64, 256)]
    for kind, dtype, rows in [*cases, (INT8, torch.float16, 64), (FP8, torch.float16, 64)]:
        assembly = quantized._ASSEMBLY[kind, dtype]
        for architecture, stages in ((80, 3), (90, 4)) if dtype == torch.bfloat16 else ((80, 3),):
            parts, tiles = quantized.parts_and_tiles(rows, 4096, 1024, stages=stages)
            constants = {f"ASSEMBLY{byte}": text.value for byte, text in enumerate(assembly)}
            constants |= {"FLOAT8": kind == FP8, "BIASED": True, "PARTED": parts > 1}
            constants |= {"ROWS": min(rows, tiles["ROWS"]), "OUTPUTS": tiles["OUTPUTS"], "WORDS": tiles["WORDS"]}
            types = {"words": "*i32", "scale": "*fp32", "parts": "*fp32", "arrived": "*i32"}
            types |= dict.fromkeys(("x", "bias", "out"), names[dtype]) | dict.fromkeys("mnkq", "i32")
            function = quantized.few_rows
            signature = {argument: types.get(argument, "constexpr") for argument in function.arg_names}
            source = ASTSource(
                fn=function,
                signature=signature,
                constexprs={(function.arg_names.index(name),): value for name, value in constants.items()},
                # As at launch: without it, loads are narrow and nothing is kept in shared memory ahead of its use.
                attrs={(at,): [["tt.divisibility", 16]] for at, name in enumerate(signature) if name in types},
            )
            options = {"num_warps": tiles["num_warps"], "num_stages": stages}
            compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
            sys.stdout.write(f"{kind} {dtype} {rows} {architecture} {stages} {compiled.metadata.shared}\n")


if __name__ == "__main__":
    compile_kernels()
