"""Text to token ids and back, with the `tokenizers` library and the files of a checkpoint, but none of its code.

Adds only the tokens that the tokenizer itself puts around a text. The engine puts a beginning-of-text token before a
plain prompt if the family wants one.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from unmask.errors import CheckpointError, UnmaskError, one_line
from unmask.models.checkpoint import chat_template as templates
from unmask.models.checkpoint.config import Config, read_text, shown

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_OPTIONS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
# Characters from which on a text is encoded as a batch, which lets other threads of Python go on meanwhile.
_LONG = 10_000
# That a text may have between two steps of a tokenizer, which is data of a stranger and may multiply it.
MOST_CHARACTERS = 64 * 2**20
# Qwen2's word boundaries: contractions, a word with one leading sign, single digits, runs of signs, line ends, blanks.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TextCodec:
    """One checkpoint's tokenizer, the names of its special tokens, and its chat template."""

    def __init__(
        self, tokenizer: Tokenizer, *, special_tokens: Mapping[str, str] | None = None, chat_template: str | None = None
    ) -> None:
        # A tokenizer.json may ask for batches cut or filled to a fixed length, which would change prompts in silence.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.highest_id = max(vocabulary.values(), default=-1)  # in use, added tokens included
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self._longest = max(map(len, vocabulary), default=0)  # characters of a token
        steps = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor, tokenizer.decoder)
        self._growth = _growth([json.loads(step.__getstate__()) for step in steps if step is not None])
        self.special_tokens = dict(special_tokens or {})  # role, such as eos_token, to the token's text
        self.chat_template = chat_template
        self._texts: dict[int, str] = {}  # of single tokens, as far as they were asked for

    @classmethod
    def from_folder(cls, folder: Path) -> TextCodec:
        """The codec that a checkpoint's files describe."""
        config = Config.read(folder / "tokenizer_config.json", optional=True)
        named = Config.read(folder / "special_tokens_map.json", optional=True).values | config.values
        special_tokens, template = _special_tokens(named), _chat_template(folder, config)
        path = folder / "tokenizer.json"
        parts = f"{folder}: vocab.json and merges.txt make no tokenizer"
        with _library_errors(f"{path}: is not a tokenizer" if path.exists() else parts, Exception):
            if path.exists():
                tokenizer = Tokenizer.from_file(str(path))
            elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
                tokenizer = _byte_bpe(folder, _added_tokens(folder, config, special_tokens))
            else:
                raise CheckpointError(f"{folder}: there is no tokenizer.json, nor vocab.json with merges.txt")
            return cls(tokenizer, special_tokens=special_tokens, chat_template=template)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text, in which special tokens are recognised; `special` adds what the tokenizer puts around it."""
        try:
            self._check_growth(len(text))
            with _library_errors("the tokenizer: its files make no working tokenizer"):
                if len(text) > _LONG:
                    return self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
                return self._tokenizer.encode(text, add_special_tokens=special).ids
        except (TypeError, UnicodeError) as error:
            problem = "must be a string" if not isinstance(text, str) else "holds half a surrogate pair"
            raise UnmaskError(f"the text {problem}: {text!r:.80}") from error

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, special tokens left out unless they are wanted, and nothing tidied up."""
        self._check_growth(len(ids) * self._longest)
        with _library_errors("the tokenizer: its files make no working tokenizer"):
            return self._tokenizer.decode(list(ids), skip_special_tokens=not special)

    def token_text(self, token_id: int) -> str:
        """How one token is shown, special ones included; an id beyond the vocabulary is shown as a number."""
        if (text := self._texts.get(token_id)) is None:
            known = self._tokenizer.id_to_token(token_id) is not None
            text = self._texts[token_id] = self.decode([token_id], special=True) if known else f"<{token_id}>"
        return text

    def token_id(self, text: str) -> int | None:
        """The id of exactly this token."""
        return self._tokenizer.token_to_id(text)

    def named_id(self, role: str) -> int | None:
        """The id of the token that plays a role, such as eos_token."""
        text = self.special_tokens.get(role)
        return None if text is None else self.token_id(text)

    def chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """Ids of a conversation under the checkpoint's template, which writes every special token itself."""
        if self.chat_template is None:
            ways = "generate(), `unmask generate` without --chat, or /v1/completions"
            raise UnmaskError(f"the checkpoint has no chat template: give the whole prompt to {ways}")
        text = templates.render(self.chat_template, messages, self.special_tokens, add_generation_prompt)
        return self.encode(text, special=False)

    def _check_growth(self, length: int) -> None:
        if length * self._growth > MOST_CHARACTERS:
            grown = f"{length} characters may become more than {MOST_CHARACTERS}"
            raise UnmaskError(f"the text is too long for the checkpoint's tokenizer, by which {grown}")


@contextmanager
def _library_errors(problem: str, kinds: type[Exception] | tuple[()] = ()) -> Generator[None]:
    """Make one line of such errors of the library, and of its panics, which are no Exceptions."""
    try:
        yield
    except UnmaskError:
        raise
    except BaseException as error:
        if isinstance(error, kinds) or type(error).__name__ == "PanicException":
            raise CheckpointError(f"{problem}: {one_line(error)}") from error
        raise


def _growth(step: Any) -> float:
    """How many times longer than before a text, or a list of tokens, can be after a step of a tokenizer, or several."""
    match step:
        case list():
            return prod(map(_growth, step), start=1.0)
        case {"type": "Replace", "content": str(content)}:  # may match between any two characters
            return 1.0 + len(content)
        case {"type": "Precompiled", "precompiled_charsmap": str(packed)}:
            table = b64decode(packed)
            texts = table[4 + int.from_bytes(table[:4], "little") :]  # behind a tree, whose size comes first
            return max(1.0, *map(len, texts.split(b"\0")))
        case {"type": "ByteLevel"}:
            return 2.0
        case {"type": "TemplateProcessing", "single": list(parts), "special_tokens": dict(special)}:
            return max(1.0, float(len(parts))) * max([1, *(len(token["ids"]) for token in special.values())])
        case dict():
            return _growth([*step.values()])
    return 1.0


def _byte_bpe(folder: Path, added: dict[int, AddedToken]) -> Tokenizer:
    """The tokenizer of a folder that holds vocab.json and merges.txt, as Qwen2 and its descendants (Dream) mean them.

    Such checkpoints leave the steps around the merges to their own code. Here they are built from parts of the library.
    """
    vocab, merges = BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    # Added tokens are in the vocabulary from the start, so that they keep their ids even if the ids have gaps.
    vocab |= {token.content: number for number, token in added.items()}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token in added.values() if token.special])
    tokenizer.add_tokens([token for token in added.values() if not token.special])
    return tokenizer


def _added_tokens(folder: Path, config: Config, special_tokens: dict[str, str]) -> dict[int, AddedToken]:
    """Tokens outside the merges, by id: with their full description, or by name alone in older checkpoints."""
    added: dict[int, AddedToken] = {}
    simple = Config.read(folder / "added_tokens.json", optional=True)
    for content in simple.values:
        special = content in special_tokens.values()
        added[simple.whole(content, low=0)] = AddedToken(content, special=special, normalized=not special)
    for number, about in config.part("added_tokens_decoder").values.items():
        try:
            options = {key: about[key] for key in _OPTIONS if key in about}
            added[int(number)] = AddedToken(about["content"], **options)
        except (KeyError, TypeError, ValueError) as error:
            raise config.error(f"added_tokens_decoder has a malformed entry {shown(number)}: {shown(about)}") from error
    return dict(sorted(added.items()))


def _special_tokens(named: Mapping[str, Any]) -> dict[str, str]:
    """Role to text; a token is written as its text or as an object with its content."""
    written = [(role, named.get(role)) for role in _ROLES]
    texts = [(role, token.get("content") if isinstance(token, dict) else token) for role, token in written]
    return {role: text for role, text in texts if isinstance(text, str)}


def _chat_template(folder: Path, config: Config) -> str | None:
    path, template = folder / "chat_template.jinja", config.get("chat_template")
    if path.exists():
        return read_text(path)
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[-1].get("template") if named else None
    if template is not None and not isinstance(template, str):
        raise config.error("chat_template must be a text or a list of named texts")
    return template
