"""A tokenizer from `vocab.json` and `merges.txt`, as Qwen2 and its descendants (Dream) mean them.

Such checkpoints leave the steps around the merges to their own code. Here these steps are built from parts of the
`tokenizers` library. Knows nothing of chat templates or special roles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from unmask.errors import CheckpointError, one_line
from unmask.models.checkpoint.config import Config, shown

_ADDED = "added_tokens_decoder"

# Qwen2's word boundaries: contractions, a word with one leading sign, single digits, runs of signs, line ends, blanks.
_WORDS = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def byte_bpe(folder: Path, tokenizer_config: dict[str, Any], special_tokens: dict[str, str]) -> Tokenizer:
    """The tokenizer of a folder that holds vocab.json and merges.txt."""
    added = _added_tokens(folder, tokenizer_config, special_tokens)
    try:
        vocab, merges = BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        # Added tokens are in the vocabulary from the start, so that they keep their ids even if the ids have gaps.
        vocab |= {token.content: number for number, token in added.items()}
        tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(f"{folder}: vocab.json and merges.txt make no tokenizer: {one_line(error)}") from error
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token in added.values() if token.special])
    tokenizer.add_tokens([token for token in added.values() if not token.special])
    return tokenizer


def _added_tokens(
    folder: Path, tokenizer_config: dict[str, Any], special_tokens: dict[str, str]
) -> dict[int, AddedToken]:
    """Tokens outside the merges, by id: with their full description, or by name alone in older checkpoints."""
    added: dict[int, AddedToken] = {}
    simple = Config.read(folder / "added_tokens.json", optional=True)
    for content in simple.values:
        special = content in special_tokens.values()
        added[simple.whole(content, low=0)] = AddedToken(content, special=special, normalized=not special)
    for number, about in Config(tokenizer_config, str(folder / "tokenizer_config.json")).part(_ADDED).values.items():
        try:
            options = {
                key: about[key] for key in ("single_word", "lstrip", "rstrip", "normalized", "special") if key in about
            }
            added[int(number)] = AddedToken(about["content"], **options)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{folder / 'tokenizer_config.json'}: {_ADDED} has a malformed entry {shown(number)}: {shown(about)}"
            ) from error
    return dict(sorted(added.items()))
