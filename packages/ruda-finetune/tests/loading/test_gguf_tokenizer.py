"""Tokenizers from GGUF files against transformers' own, and where the model's original differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
import transformers
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

from ruda_finetune import ModelFileError
from ruda_finetune.loading import load_gguf_tokenizer, open_gguf

TEXTS = [
    "",
    "Hello world",
    " leading and trailing ",
    "The 1972 Ford has 8 cylinders, 150.5 hp & 17 mpg.",
    "don't we'll I'm THEY'RE",
    "def f(x):\n    return x + 1\n\n\n\tdone",
    "ünïcödé ☃ 漢字 emoji 👩‍🚀 and ​ zero width",
    "a\r\nb\rc",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST] x [/INST]</s><think>",
    "!!!???...;;;",
    "ALLCAPS camelCase snake_case kebab-case",
]
CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog " * 3, "low lower lowest " * 5]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text).input_ids


def theirs(path: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


@pytest.fixture
def write_tokenizer(tiny_model: Any, write_gguf: Any) -> Callable[..., Path]:
    """A GGUF file with a model (transformers needs one) and the given tokenizer."""

    def write(tokenizer: Callable[[gguf.GGUFWriter], None], architecture: str = "llama") -> Path:
        family = architecture if architecture in ("qwen2", "gemma") else "llama"
        model = tiny_model(family, num_hidden_layers=1)
        return write_gguf(model, architecture, tokenizer=tokenizer, kinds=("Q4_0",)).path

    return write


def byte_level(pre: str, **extra: Any) -> Callable[[gguf.GGUFWriter], None]:
    """A small byte-level BPE vocabulary, trained here, with two control tokens and a user's."""
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(CORPUS, trainer)
    trained.add_tokens(["<think>"])
    vocabulary = trained.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    import json

    merges = json.loads(trained.to_str())["model"]["merges"]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3] * 3 + [1] * (len(tokens) - 4) + [4])
        writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in merges])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_chat_template(TEMPLATE)
        for key, value in extra.items():
            getattr(writer, f"add_{key}")(value)

    return write


def sentencepiece(
    leave_out: tuple[str, ...] = (), scores: bool = True, **extra: Any
) -> Callable[[gguf.GGUFWriter], None]:
    """A vocabulary as sentencepiece makes it: control, byte tokens, pieces scored by their rank."""
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS[:6] + CORPUS[-2:], trainer)
    vocabulary = trained.get_vocab()
    pieces = [t for t in sorted(vocabulary, key=vocabulary.__getitem__) if "<" not in t]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces, "<think>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4]
    values = [0.0] * 259 + [-float(i) for i in range(len(pieces) + 1)]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        if scores:
            writer.add_token_scores(values)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        for key, value in extra.items():
            getattr(writer, f"add_{key}")(value)

    return write


# --- the demo's tokenizer ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo_tokenizer(smollm2: Path) -> Any:
    return load_gguf_tokenizer(open_gguf(smollm2))


def test_demo_against_transformers(smollm2: Path, demo_tokenizer: Any) -> None:
    reference = theirs(smollm2)
    for text in TEXTS:
        assert ids(demo_tokenizer, text) == ids(reference, text), text
        assert demo_tokenizer.decode(ids(demo_tokenizer, text)) == text
    for name in ("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id", "vocab_size"):
        assert getattr(demo_tokenizer, name) == getattr(reference, name), name
    assert demo_tokenizer.chat_template == reference.chat_template
    assert demo_tokenizer.all_special_tokens == reference.all_special_tokens
    assert demo_tokenizer.added_tokens_decoder == reference.added_tokens_decoder
    assert (demo_tokenizer.add_bos_token, demo_tokenizer.add_eos_token) == (False, False)
    messages = [{"role": "user", "content": "How old is a 1970 Ford?"}]
    options = {"add_generation_prompt": True, "tokenize": False}
    assert demo_tokenizer.apply_chat_template(messages, **options) == (
        reference.apply_chat_template(messages, **options)
    )
    assert demo_tokenizer.padding_side == reference.padding_side


def test_demo_digits(demo_tokenizer: Any) -> None:
    """SmolLM's pre-tokenizer splits digits first: spaces before a number stay together.

    transformers' GGUF loader knows no rule of this name and gives ["Ġ", "Ġ", "4", "2"] here, which
    is not how the model was trained.
    """
    tokens = demo_tokenizer.tokenize("x   42")
    assert tokens == ["x", "ĠĠĠ", "4", "2"]
    assert demo_tokenizer.tokenize("1234") == ["1", "2", "3", "4"]


def test_demo_saved_and_read_again(demo_tokenizer: Any, tmp_path: Path) -> None:
    demo_tokenizer.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    for text in TEXTS:
        assert ids(again, text) == ids(demo_tokenizer, text)
    assert again.chat_template == demo_tokenizer.chat_template
    assert again.pad_token == demo_tokenizer.pad_token


# --- byte-level BPE ---------------------------------------------------------------------------


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "qwen2", "tekken"])
@pytest.mark.parametrize("bos", [True, False])
def test_byte_level_against_transformers(
    pre: str, bos: bool, write_tokenizer: Callable[..., Path]
) -> None:
    path = write_tokenizer(byte_level(pre, add_bos_token=bos))
    ours, reference = load_gguf_tokenizer(open_gguf(path)), theirs(path)
    for text in TEXTS:
        assert ids(ours, text) == ids(reference, text), text
        assert ids(ours, text)[:1] == [1] if bos else True
        assert ours.decode(ids(ours, text), skip_special_tokens=False) == reference.decode(
            ids(reference, text), skip_special_tokens=False
        )
    assert ours.tokenize("a<think>b")[1] == "<think>"
    assert "<think>" not in ours.all_special_tokens
    assert ours.chat_template == TEMPLATE
    assert ours.pad_token is None


def test_bos_where_the_file_does_not_say(write_tokenizer: Callable[..., Path]) -> None:
    """Llama 3's files have no flag, and its tokenizer adds the token."""
    assert load_gguf_tokenizer(open_gguf(write_tokenizer(byte_level("llama-bpe")))).add_bos_token
    assert not load_gguf_tokenizer(open_gguf(write_tokenizer(byte_level("qwen2")))).add_bos_token
    assert load_gguf_tokenizer(open_gguf(write_tokenizer(sentencepiece()))).add_bos_token


def test_qwen_composes_characters(write_tokenizer: Callable[..., Path]) -> None:
    """Qwen's tokenizer normalises to NFC: both spellings of é are the same ids."""
    ours = load_gguf_tokenizer(open_gguf(write_tokenizer(byte_level("qwen2"))))
    assert ids(ours, "cafe\u0301") == ids(ours, "caf\u00e9")
    plain = load_gguf_tokenizer(open_gguf(write_tokenizer(byte_level("llama-bpe"))))
    assert ids(plain, "cafe\u0301") != ids(plain, "caf\u00e9")


def test_eos_added(write_tokenizer: Callable[..., Path]) -> None:
    path = write_tokenizer(byte_level("qwen2", add_eos_token=True, add_bos_token=False))
    assert ids(load_gguf_tokenizer(open_gguf(path)), "low")[-1] == 2


# --- sentencepiece ----------------------------------------------------------------------------


def test_sentencepiece_against_transformers(write_tokenizer: Callable[..., Path]) -> None:
    path = write_tokenizer(sentencepiece(add_space_prefix=True))
    ours, reference = load_gguf_tokenizer(open_gguf(path)), theirs(path)
    for text in TEXTS:
        assert ids(ours, text) == ids(reference, text), text
        assert ours.decode(ids(ours, text)) == reference.decode(ids(reference, text))
    assert ids(ours, "漢")[-3:] == [3 + byte for byte in "漢".encode()]  # byte tokens follow </s>
    assert (ours.bos_token, ours.eos_token, ours.unk_token) == ("<s>", "</s>", "<unk>")


def test_no_space_prefix(write_tokenizer: Callable[..., Path]) -> None:
    """The file's flag counts, which transformers' loader does not read."""
    with_prefix = load_gguf_tokenizer(open_gguf(write_tokenizer(sentencepiece())))
    path = write_tokenizer(sentencepiece(add_space_prefix=False))
    without = load_gguf_tokenizer(open_gguf(path))
    assert with_prefix.tokenize("low") == ["▁low"]
    assert "".join(without.tokenize("low")) == "low"
    assert without.decode(ids(without, "low"), skip_special_tokens=True) == "low"
    assert with_prefix.decode(ids(with_prefix, "low"), skip_special_tokens=True) == "low"


def test_gemma(write_tokenizer: Callable[..., Path]) -> None:
    """Gemma: no prefix, runs of spaces are tokens, ranks come from the order of the vocabulary."""
    pieces = ["a", "b", "▁", "  ", "    ", "ab", "▁ab"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<0x0A>", *pieces, "<start_of_turn>"]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_types([3, 3, 3, 2, 6, *[1] * len(pieces), 4])
        writer.add_bos_token_id(2)
        writer.add_eos_token_id(1)
        writer.add_unk_token_id(3)
        writer.add_pad_token_id(0)
        writer.add_add_bos_token(True)

    path = write_tokenizer(write, "gemma")
    ours = load_gguf_tokenizer(open_gguf(path))
    family, contents, _ = get_gguf_tokenizer(str(path))
    reference, _ = convert_gguf_tokenizer(family, contents)
    for text in ("ab ab", "  a  b    ab", "b\n", "<start_of_turn>ab", "zz", ""):
        assert (
            ours(text, add_special_tokens=False).input_ids
            == reference.encode(text, add_special_tokens=False).ids
        ), text
    assert ours.tokenize("ab    ab\n<start_of_turn>z") == [
        "ab",
        "▁▁▁▁",
        "ab",
        "<0x0A>",
        "<start_of_turn>",
        "<unk>",
    ]
    assert ids(ours, "ab ab") == [2, tokens.index("ab"), tokens.index("▁ab")]
    assert ours.pad_token_id == 0


# --- wrong files ------------------------------------------------------------------------------


def _changed(base: Callable[[gguf.GGUFWriter], None], **changes: Any) -> Any:
    def write(writer: gguf.GGUFWriter) -> None:
        base(writer)
        for key, value in changes.items():
            writer.kv_data[0].pop(f"tokenizer.ggml.{key}")
            if value is not None:
                add = writer.add_array if isinstance(value, list) else writer.add_string
                add(f"tokenizer.ggml.{key}", value)

    return write


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: byte_level("poro-chat"), "pre-tokenizer 'poro-chat' is not supported; supported"),
        (
            lambda: _changed(byte_level("qwen2"), model="bert"),
            "tokenizer model 'bert' is not supported; supported: gpt2, llama",
        ),
        (lambda: _changed(byte_level("qwen2"), merges=None), "there is no tokenizer.ggml.merges"),
        (
            lambda: _changed(byte_level("qwen2"), merges=["q zebra"]),
            "the merges are damaged",
        ),
        (
            lambda: _changed(byte_level("qwen2"), tokens=["a", "b", "a"]),
            "1 tokens of the vocabulary appear more than once",
        ),
        (lambda: byte_level("qwen2", pad_token_id=5000), "padding_token_id is 5000, but the vocab"),
        (lambda: sentencepiece(scores=False), "needs one score a token: got None"),
        (lambda: _changed(byte_level("qwen2"), tokens=None), "there is no tokenizer in this file"),
    ],
)
def test_wrong(change: Any, message: str, write_tokenizer: Callable[..., Path]) -> None:
    path = write_tokenizer(change())
    with pytest.raises(ModelFileError, match=message) as caught:
        load_gguf_tokenizer(open_gguf(path))
    assert str(path) in str(caught.value)
