"""The vocabulary of `list_functions`: one operation, its Python expression in `x`, and ways to ask for it.

Slots: {k} a number from `low` to `high`, {c} and {d} two different letters. Every expression is total: it has a value
for every input of its type, the empty one included.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Primitive:
    """One operation from `source` to `target`: ints, text, words, or number and truth, which end a chain."""

    source: str
    target: str
    code: str
    asked: tuple[str, ...]
    low: int = 2
    high: int = 5


def _p(source: str, target: str, code: str, *asked: str, low: int = 2, high: int = 5) -> Primitive:
    return Primitive(source, target, code, asked, low, high)


INTS = (
    _p("ints", "ints", "[v for v in x if v % 2 == 0]", "keep only the even numbers", "drop every odd number"),
    _p("ints", "ints", "[v for v in x if v % 2 == 1]", "keep only the odd numbers", "throw out the even numbers"),
    _p(
        "ints", "ints", "[v for v in x if v > 0]", "keep the positive numbers", "drop all numbers that are not positive"
    ),
    _p("ints", "ints", "[v for v in x if v < 0]", "keep the negative numbers", "keep only what is below zero"),
    _p("ints", "ints", "[v for v in x if v > {k}]", "keep numbers greater than {k}", "keep what is above {k}", high=15),
    _p("ints", "ints", "[v for v in x if v < {k}]", "keep numbers smaller than {k}", "keep what is below {k}", high=15),
    _p(
        "ints",
        "ints",
        "[v for v in x if v % {k} == 0]",
        "keep the multiples of {k}",
        "keep what {k} divides",
        low=3,
        high=9,
    ),
    _p(
        "ints",
        "ints",
        "[v for v in x if v % {k} != 0]",
        "drop the multiples of {k}",
        "remove what {k} divides",
        low=3,
        high=9,
    ),
    _p("ints", "ints", "[v for v in x if v != {k}]", "remove every {k}", "drop all that equal {k}", high=9),
    _p("ints", "ints", "[v + {k} for v in x]", "add {k} to each number", "increase every number by {k}", high=15),
    _p("ints", "ints", "[v - {k} for v in x]", "subtract {k} from each number", "lower every number by {k}", high=15),
    _p(
        "ints",
        "ints",
        "[v * {k} for v in x]",
        "multiply each number by {k}",
        "make every number {k} times as large",
        high=9,
    ),
    _p(
        "ints",
        "ints",
        "[v // {k} for v in x]",
        "divide each number by {k}, rounding down",
        "floor divide all by {k}",
        high=9,
    ),
    _p(
        "ints",
        "ints",
        "[v % {k} for v in x]",
        "take each number modulo {k}",
        "replace all by the remainder mod {k}",
        high=9,
    ),
    _p("ints", "ints", "[v * v for v in x]", "square each number", "replace every number by its square"),
    _p("ints", "ints", "[v ** 3 for v in x]", "cube each number", "raise every number to the third power"),
    _p("ints", "ints", "[-v for v in x]", "negate each number", "flip the sign of every number"),
    _p("ints", "ints", "[abs(v) for v in x]", "take absolute values", "drop the sign of each number"),
    _p("ints", "ints", "[min(v, {k}) for v in x]", "cap each number at {k}", "replace larger numbers by {k}", high=15),
    _p(
        "ints",
        "ints",
        "[max(v, {k}) for v in x]",
        "raise each number to at least {k}",
        "replace smaller numbers by {k}",
        high=9,
    ),
    _p(
        "ints",
        "ints",
        "[i * v for i, v in enumerate(x)]",
        "multiply each number by its index",
        "weight numbers by position",
    ),
    _p(
        "ints",
        "ints",
        "[i + v for i, v in enumerate(x)]",
        "add its index to each number",
        "add the position to every number",
    ),
    _p(
        "ints",
        "ints",
        "[b - a for a, b in zip(x, x[1:])]",
        "take differences of neighbours",
        "subtract each from the next",
    ),
    _p("ints", "ints", "[a + b for a, b in zip(x, x[1:])]", "add up neighbours", "sum each number with the next"),
    _p("ints", "ints", "[sum(x[:i + 1]) for i in range(len(x))]", "build running sums", "take cumulative totals"),
    _p(
        "ints",
        "ints",
        "[sum(int(d) for d in str(abs(v))) for v in x]",
        "take digit sums",
        "replace numbers by their digit sum",
    ),
    _p("ints", "ints", "x[::-1]", "reverse the list", "put the numbers in reverse order"),
    _p("ints", "ints", "sorted(x)", "sort in ascending order", "sort from small to large"),
    _p("ints", "ints", "sorted(x, reverse=True)", "sort in descending order", "sort from large to small"),
    _p("ints", "ints", "sorted(x, key=abs)", "sort by absolute value", "order by distance from zero"),
    _p("ints", "ints", "list(dict.fromkeys(x))", "remove duplicates", "keep the first of equal numbers"),
    _p("ints", "ints", "x[:{k}]", "keep the first {k} numbers", "cut the list to its first {k}"),
    _p("ints", "ints", "x[-{k}:]", "keep the last {k} numbers", "cut the list to its last {k}"),
    _p("ints", "ints", "x[{k}:]", "skip the first {k} numbers", "drop {k} numbers from the front"),
    _p("ints", "ints", "x[:-{k}]", "drop the last {k} numbers", "leave out {k} numbers at the end"),
    _p("ints", "ints", "x[::2]", "take every second number", "keep numbers at even positions"),
    _p("ints", "ints", "x[1:] + x[:1]", "move the first number to the end", "rotate left by one"),
    _p("ints", "ints", "x + x", "repeat the list", "join the list with itself"),
    _p("ints", "ints", "x + x[::-1]", "append the mirrored list", "join the list with its reverse"),
    _p("ints", "ints", "x + [{k}]", "append {k}", "put {k} at the end", high=20),
    _p("ints", "ints", "[{k}] + x", "prepend {k}", "put {k} in front", high=20),
    _p("ints", "words", "[str(v) for v in x]", "turn each number into a string", "convert numbers to strings"),
    _p("ints", "number", "sum(x)", "return the sum", "add everything up"),
    _p("ints", "number", "sum(v * v for v in x)", "return the sum of squares", "add up the squares"),
    _p("ints", "number", "max(x, default=0)", "return the largest number", "give the maximum"),
    _p("ints", "number", "min(x, default=0)", "return the smallest number", "give the minimum"),
    _p("ints", "number", "max(x, default=0) - min(x, default=0)", "return the range", "give maximum minus minimum"),
    _p("ints", "number", "len(x)", "return how many numbers there are", "count the numbers"),
    _p("ints", "number", "len(set(x))", "count the distinct numbers", "return how many different numbers there are"),
    _p("ints", "number", "sum(v % 2 == 0 for v in x)", "count the even numbers", "return how many are even"),
    _p("ints", "number", "sum(v > {k} for v in x)", "count numbers above {k}", "return how many exceed {k}", high=15),
    _p(
        "ints", "number", "x.count({k})", "count how often {k} occurs", "return the number of times {k} appears", high=9
    ),
    _p("ints", "number", "x[-1] if x else 0", "return the last number", "give the final number or 0"),
    _p("ints", "number", "sorted(x)[len(x) // 2] if x else 0", "return the median", "give the middle after sorting"),
    _p(
        "ints", "truth", "all(v > 0 for v in x)", "tell whether all are positive", "check that every number is positive"
    ),
    _p(
        "ints", "truth", "any(v > {k} for v in x)", "tell whether any exceeds {k}", "check if one is above {k}", high=15
    ),
    _p("ints", "truth", "x == sorted(x)", "tell whether it is sorted", "check that it is in ascending order"),
)

TEXT = (
    _p("text", "text", "x.upper()", "convert to upper case", "make all letters capital"),
    _p("text", "text", "x.lower()", "convert to lower case", "make all letters small"),
    _p("text", "text", "x.swapcase()", "swap upper and lower case", "invert the case of letters"),
    _p("text", "text", "x.title()", "capitalize each word of it", "convert to title case"),
    _p("text", "text", "x[::-1]", "reverse the string", "spell it backwards"),
    _p("text", "text", 'x.replace(" ", "")', "remove all spaces", "delete the blanks"),
    _p("text", "text", 'x.replace(" ", "_")', "replace spaces by underscores", "turn blanks into underscores"),
    _p("text", "text", 'x.replace("{c}", "{d}")', 'replace "{c}" by "{d}"', 'change every "{c}" into "{d}"'),
    _p("text", "text", 'x.replace("{c}", "")', 'delete every "{c}"', 'remove the letter "{c}"'),
    _p("text", "text", '"".join(c for c in x if c not in "aeiou")', "remove the small vowels", "delete small vowels"),
    _p(
        "text",
        "text",
        '"".join(c for c in x if c in "aeiou")',
        "keep only small vowels",
        "drop all but the small vowels",
    ),
    _p("text", "text", '"".join(c for c in x if c.isalpha())', "keep only letters", "drop what is not a letter"),
    _p("text", "text", '"".join(c * 2 for c in x)', "double each character", "write every character twice"),
    _p("text", "text", '"".join(sorted(x))', "sort the characters", "put the characters in order"),
    _p("text", "text", '"".join(dict.fromkeys(x))', "drop repeated characters", "keep each character once"),
    _p("text", "text", "x[:{k}]", "keep the first {k} characters", "cut it to {k} characters", high=8),
    _p("text", "text", "x[-{k}:]", "keep the last {k} characters", "take {k} characters from the end", high=8),
    _p("text", "text", "x[{k}:]", "skip the first {k} characters", "drop {k} characters from the front"),
    _p("text", "text", "x[::2]", "take every second character", "keep characters at even positions"),
    _p("text", "text", "x * {k}", "repeat the string {k} times", "write it {k} times in a row"),
    _p("text", "text", 'x + "{c}"', 'append "{c}"', 'put "{c}" at the end'),
    _p("text", "text", '"{c}" + x', 'prepend "{c}"', 'put "{c}" in front'),
    _p("text", "words", "x.split()", "split it into words", "cut it at blanks"),
    _p("text", "words", "list(x)", "split it into characters", "make a list of its characters"),
    _p("text", "number", "len(x)", "return the length", "count the characters"),
    _p("text", "number", "len(x.split())", "count the words", "return the number of words"),
    _p("text", "number", 'x.count("{c}")', 'count how often "{c}" occurs', 'return the number of "{c}"'),
    _p(
        "text",
        "number",
        'sum(c in "aeiou" for c in x)',
        "count the small vowels",
        "return how many small vowels it has",
    ),
    _p("text", "number", "len(set(x))", "count different characters", "return how many different characters it has"),
    _p("text", "truth", "x == x[::-1]", "tell whether it is a palindrome", "check if it reads the same backwards"),
    _p("text", "truth", 'x.startswith("{c}")', 'tell whether it starts with "{c}"', 'check for "{c}" at the start'),
    _p("text", "truth", '"{c}" in x', 'tell whether it contains "{c}"', 'check if "{c}" occurs'),
)

WORDS = (
    _p("words", "words", "sorted(x)", "sort alphabetically", "put the strings in alphabetical order"),
    _p("words", "words", "sorted(x, key=len)", "sort by length", "order the strings from short to long"),
    _p("words", "words", "x[::-1]", "reverse the list", "put the strings in reverse order"),
    _p("words", "words", "list(dict.fromkeys(x))", "remove duplicates", "keep the first of equal strings"),
    _p("words", "words", "[w.upper() for w in x]", "write each string in upper case", "make all strings upper case"),
    _p("words", "words", "[w.capitalize() for w in x]", "capitalize each string", "start each string with a capital"),
    _p("words", "words", "[w[::-1] for w in x]", "reverse each string", "spell every string backwards"),
    _p("words", "words", "[w[:1] for w in x]", "take first letters", "keep the initial of each string"),
    _p("words", "words", "[w * 2 for w in x]", "double each string", "write every string twice in a row"),
    _p("words", "words", '[w + "{c}" for w in x]', 'append "{c}" to each string', 'put "{c}" after every string'),
    _p(
        "words",
        "words",
        "[w for w in x if len(w) > {k}]",
        "keep strings longer than {k}",
        "drop strings up to length {k}",
    ),
    _p(
        "words",
        "words",
        "[w for w in x if len(w) < {k}]",
        "keep strings shorter than {k}",
        "drop strings of length {k} and up",
    ),
    _p("words", "words", '[w for w in x if "{c}" in w]', 'keep strings with "{c}"', 'keep strings that contain "{c}"'),
    _p("words", "words", '[w for w in x if "{c}" not in w]', 'drop strings with "{c}"', 'keep strings without "{c}"'),
    _p("words", "words", "[w for w in x if w == w[::-1]]", "keep palindromes", "drop all but the palindromes"),
    _p("words", "words", "x[:{k}]", "keep the first {k} strings", "cut the list to its first {k}"),
    _p("words", "words", "x[{k}:]", "skip the first {k} strings", "drop {k} strings from the front"),
    _p("words", "words", "x[::2]", "take every second string", "keep strings at even positions"),
    _p("words", "ints", "[len(w) for w in x]", "replace each string by its length", "list the lengths"),
    _p("words", "text", '" ".join(x)', "join them with spaces", "glue the strings with blanks"),
    _p("words", "text", '"-".join(x)', "join them with dashes", "glue the strings with dashes"),
    _p("words", "text", '"".join(x)', "join them into one string", "glue the strings together"),
    _p("words", "number", "len(x)", "return how many strings there are", "count the strings"),
    _p("words", "number", "sum(len(w) for w in x)", "return the total length", "count all characters"),
    _p(
        "words",
        "number",
        "max((len(w) for w in x), default=0)",
        "return the greatest length",
        "give the longest length",
    ),
    _p("words", "number", 'sum("{c}" in w for w in x)', 'count strings with "{c}"', 'return how many contain "{c}"'),
)
