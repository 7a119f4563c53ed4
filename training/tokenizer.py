"""The tokenizer of `tiny`: byte-level BPE learnt from its own tasks, every digit a token of its own.

Byte-complete, so any text can be encoded. A prompt becomes `<|startoftext|>` prompt `<|eot_id|>`, and the answer
follows; the chat template writes the same for a conversation of one message.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from unmask import tasks

BOS, EOS, MASK, END_OF_TURN = "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|eot_id|>"
SPECIAL = [BOS, EOS, MASK, END_OF_TURN, "<|start_header_id|>", "<|end_header_id|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] | trim }}"
    "{% if not loop.last or message['role'] != 'assistant' %}<|eot_id|>{% endif %}{% endfor %}"
)
SAMPLES = 4000  # of each task

_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def learn(vocab_size: int) -> Tokenizer:
    """The same tokenizer on every call: the corpus is drawn from the training side with a fixed seed."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    ids = [(token, tokenizer.token_to_id(token)) for token in (BOS, END_OF_TURN)]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A {END_OF_TURN}", special_tokens=ids)
    return tokenizer


def corpus() -> list[str]:
    items = [
        item for name in ("word_problems", "list_functions") for item in tasks.get(name).generate(0, SAMPLES, "train")
    ]
    headings = ["Sudoku: ", "Countdown: "] * SAMPLES
    return [text for item in items for text in (item.prompt, item.answer)] + headings


def save(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "additional_special_tokens": SPECIAL[3:],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
