"""The program that compares formulas, in a worker process; answers.py asks it.

math-verify's own time limits are signal handlers, which do not end a computation inside C; they are off.
"""

from __future__ import annotations

import re

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import parse, verify


def answer(request: tuple[str, str, str]) -> bool:
    """`equivalent`: are two formulas equal? `verified`: does the second text reach the answer of the first?"""
    question, first, second = request
    try:
        if question == "verified":
            # None is allowed, whatever the annotation says.
            gold, found = (parse(text, parsing_timeout=None) for text in (first, second))  # ty: ignore[invalid-argument-type]
            return verify(gold, found, timeout_seconds=None)
        # As in sympy's own reader, which lm-eval uses: X is not x, and 2\frac{1}{2} is a product.
        reading = ConversionConfig(lowercase_symbols=False)
        products = (re.sub(r"(\d)\s*(?=\\[dt]?frac)", r"\1\\cdot ", text) for text in (first, second))
        left, right = (latex2sympy(text, conversion_config=reading) for text in products)
        expressions = isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)
        return bool(expressions and sympy.simplify(left - right) == 0)
    except Exception:  # what cannot be read is not equal
        return False
