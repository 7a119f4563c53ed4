"""Text to token ids and back, with the `tokenizers` library and the files of a checkpoint, but none of its code.

Adds only the tokens that the tokenizer itself puts around a text. The engine puts a beginning-of-text token before a
plain prompt if the family wants one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from unmask.errors import CheckpointError, UnmaskError
from unmask.models.checkpoint import chat_template as templates
from unmask.models.checkpoint.byte_bpe import byte_bpe
from unmask.models.checkpoint.config import read_json

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Characters from which on a text is encoded as a batch, which lets other threads of Python go on meanwhile.
_LONG = 10_000


class TextCodec:
    """One checkpoint's tokenizer, the names of its special tokens, and its chat template."""

    def __init__(
        self, tokenizer: Tokenizer, *, special_tokens: Mapping[str, str] | None = None, chat_template: str | None = None
    ) -> None:
        # A tokenizer.json may ask for batches cut or filled to a fixed length, which would change prompts in silence.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.special_tokens = dict(special_tokens or {})  # role, such as eos_token, to the token's text
        self.chat_template = chat_template

    @classmethod
    def from_folder(cls, folder: Path) -> TextCodec:
        """The codec that a checkpoint's files describe."""
        config = read_json(folder / "tokenizer_config.json", optional=True)
        special_tokens = _special_tokens(folder, config)
        if (folder / "tokenizer.json").exists():
            tokenizer = _read_tokenizer(folder / "tokenizer.json")
        elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
            tokenizer = byte_bpe(folder, config, special_tokens)
        else:
            raise CheckpointError(f"{folder}: there is no tokenizer.json, nor vocab.json with merges.txt")
        return cls(tokenizer, special_tokens=special_tokens, chat_template=_chat_template(folder, config))

    @property
    def highest_id(self) -> int:
        """The highest id in use, added tokens included."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text, in which special tokens are recognised; `special` adds what the tokenizer puts around it."""
        try:
            if len(text) > _LONG:
                return self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
            return self._tokenizer.encode(text, add_special_tokens=special).ids
        except (TypeError, UnicodeError) as error:
            problem = "must be a string" if not isinstance(text, str) else "holds half a surrogate pair"
            raise UnmaskError(f"the text {problem}: {text!r:.80}") from error

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, special tokens left out unless they are wanted, and nothing tidied up."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=not special)

    def token_text(self, token_id: int) -> str:
        """How one token is shown, special ones included; an id beyond the vocabulary is shown as a number."""
        if self._tokenizer.id_to_token(token_id) is None:
            return f"<{token_id}>"
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

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
            raise UnmaskError("the checkpoint has no chat template: use generate() with a prompt of your own")
        text = templates.render(self.chat_template, messages, self.special_tokens, add_generation_prompt)
        return self.encode(text, special=False)


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(f"{path}: is not a tokenizer: {error}") from error


def _special_tokens(folder: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Role to text; a token is written as its text or as an object with its content."""
    named = read_json(folder / "special_tokens_map.json", optional=True) | tokenizer_config
    texts = {
        role: named[role]["content"] if isinstance(named[role], dict) else named[role]
        for role in _ROLES
        if role in named
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(
            f"{folder / 'tokenizer_config.json'}: chat_template must be a text or a list of named texts"
        )
    return template
