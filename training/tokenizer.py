"""Builds the byte-level BPE tokenizer from generated text: `python -m training.tokenizer`. Knows no model.

Numbers split in pairs of digits, with the space before them (" 14", ":", "05"), so a value is one or two tokens.
"""

import json
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from training import words
from training.facts import NUMBERS, make_document

BUNDLED = Path(__file__).resolve().parent.parent / "src" / "statemark" / "bundled"
TEMPLATE = Path(__file__).resolve().parent / "chat_template.jinja"
VOCABULARY = 2048
PATTERN = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tools>", "</tools>", "<tool_response>", "</tool_response>",
]  # fmt: skip
# The tags appear inside ordinary text (a template writes them, a parser reads them): added, but not special.
HIDDEN = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
PROSE = (
    "You answer questions about the document. Use only what it says. Here is the document. Answer "
    "briefly.\n"
    "You are a helpful assistant. Thank you! Hello, please tell me. I do not know. This is not in "
    "the document. What can you do?\n"
    "# Tools\n"
    "\n"
    "A call is written as\n"
    '{"name": NAME, "arguments": ARGUMENTS}\n'
    '{"type": "function", "function": {"name": "look_up",\n'
    '"description": "Looks up a value.", "parameters": {"type": "object", "properties": {"key": '
    '{"type": "string"}}, "required": ["key"]}}}\n'
    "system user assistant tool\n"
    "system\n"
    "user\n"
    "assistant\n"
    "tool\n"
    "assistant\n"
    "user"
)


def corpus() -> list[str]:
    rng = random.Random(1)
    texts = [PROSE] * 200
    for _ in range(400):
        document = make_document(rng, 40)
        texts.append(document.text)
        for fact in document.facts:
            for q in fact.questions:
                texts.append("\n".join((q.text, q.follow_up, q.thought, q.answer)))
    every = [*words.COLOURS, *words.OBJECTS, *words.VEHICLES, *words.CITIES, *words.FIRST_NAMES]
    every += [*words.LAST_NAMES, *words.MACHINES, *words.STATES, *NUMBERS, *(f"{n:02d}" for n in range(100))]
    texts += ["\n".join(f"{w}\n {w}\n|{w}\n{w.capitalize()}\n {w.capitalize()}" for w in every)] * 200
    return texts


def build() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    from tokenizers import AddedToken

    for content in SPECIAL:
        token = AddedToken(content, special=content in HIDDEN, normalized=False)
        (tokenizer.add_special_tokens if content in HIDDEN else tokenizer.add_tokens)([token])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = TEMPLATE.read_text()
    (folder / "chat_template.jinja").write_text(template)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 4096,
        "add_bos_token": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(t)): {
                "content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                "special": t in HIDDEN,
            }
            for t in SPECIAL
        },
        "chat_template": template,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    built = build()
    save(built, BUNDLED)
    print(f"{built.get_vocab_size()} tokens written to {BUNDLED}")
