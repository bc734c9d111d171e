"""The tokenizer of a GGUF file, built from its metadata with the `tokenizers` library.

A GGUF file carries the vocabulary, merges or scores, token types and special ids, and the *name* of
the pre-tokenizer. Two models are read: `gpt2` (byte-level BPE) and `llama` (sentencepiece BPE,
Gemma's included).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ModelFileError
from ..quick_import import collector_paused, import_transformers
from .container import GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_SPACE = "▁"  # sentencepiece's mark of a space
_CONTROL, _USER_DEFINED = 3, 4  # llama.cpp's token types that are matched whole in a text

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Pre-tokenizer name -> what splits the text before the byte-level step. "gpt2": GPT-2's own
# expression; "digits": every digit alone, then GPT-2's; else a regular expression.
_SPLITS: dict[str, str] = {
    "default": "gpt2",
    "gpt-2": "gpt2",
    "smollm": "digits",
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def has_gguf_tokenizer(file: GGUFFile) -> bool:
    """Whether a file carries a tokenizer."""
    return "tokenizer.ggml.model" in file.metadata


def check_gguf_tokenizer(file: GGUFFile) -> None:
    """Raise what `load_gguf_tokenizer` would say about the metadata, without building anything.

    Left to the building: tokens that appear twice, and merges that are damaged.
    """
    tokens = _tokens(file)
    model = file.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        _split_of(file)
        _stated_merges(file)
    elif model == "llama":
        _token(file, tokens, "unknown_token_id")
    else:
        raise ModelFileError(
            f"[load_gguf] {file.path}: tokenizer model {model!r} is not supported; supported: "
            "gpt2, llama"
        )
    _special_tokens(file, tokens)


def load_gguf_tokenizer(file: GGUFFile) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file as a `PreTrainedTokenizerFast`, chat template included.

    Ids, special tokens, `add_bos_token` and the template are the file's. Raises `ModelFileError`
    for a file without a tokenizer and for a tokenizer model or pre-tokenizer that is not known
    (naming those that are).
    """
    import_transformers()
    from transformers import PreTrainedTokenizerFast

    with collector_paused():
        check_gguf_tokenizer(file)
        metadata, tokens = file.metadata, _tokens(file)
        gpt2 = metadata["tokenizer.ggml.model"] == "gpt2"
        backend = _byte_level(file, tokens) if gpt2 else _sentencepiece(file, tokens)
        _add_whole_tokens(file, backend, tokens)
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            chat_template=metadata.get("tokenizer.chat_template"),
            add_bos_token=_adds_bos(file),
            add_eos_token=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
            model_max_length=int(metadata.get(f"{file.architecture}.context_length", int(1e30))),
            clean_up_tokenization_spaces=False,
            **_special_tokens(file, tokens),
        )


def _tokens(file: GGUFFile) -> list[str]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelFileError(f"[load_gguf] {file.path}: there is no tokenizer in this file")
    return tokens


def _special_tokens(file: GGUFFile, tokens: Sequence[str]) -> dict[str, str | None]:
    return {
        name: _token(file, tokens, key)
        for name, key in (
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        )
    }


def _adds_bos(file: GGUFFile) -> bool:
    stated = file.metadata.get("tokenizer.ggml.add_bos_token")
    if stated is not None:
        return bool(stated)
    # llama.cpp's defaults for files that do not say: sentencepiece, Llama 3 and Tekken add it.
    if file.metadata.get("tokenizer.ggml.model") == "llama":
        return True
    return file.metadata.get("tokenizer.ggml.pre") in (*_LLAMA3_NAMES, "tekken")


def _token(file: GGUFFile, tokens: Sequence[str], key: str) -> str | None:
    index = file.metadata.get(f"tokenizer.ggml.{key}")
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise ModelFileError(
            f"[load_gguf] {file.path}: tokenizer.ggml.{key} is {index}, but the vocabulary has "
            f"{len(tokens)} tokens"
        )
    return tokens[index]


def _vocabulary(file: GGUFFile, tokens: Sequence[str]) -> dict[str, int]:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelFileError(
            f"[load_gguf] {file.path}: {len(tokens) - len(vocabulary)} tokens of the vocabulary "
            "appear more than once"
        )
    return vocabulary


def _split_of(file: GGUFFile) -> tuple[str, str]:
    """The pre-tokenizer's name and what it splits by."""
    name = file.metadata.get("tokenizer.ggml.pre", "default")
    split = _SPLITS.get(name)
    if split is None:
        raise ModelFileError(
            f"[load_gguf] {file.path}: pre-tokenizer {name!r} is not supported; supported: "
            f"{', '.join(_SPLITS)}"
        )
    return name, split


def _stated_merges(file: GGUFFile) -> list[str]:
    merges = file.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise ModelFileError(f"[load_gguf] {file.path}: there is no tokenizer.ggml.merges")
    return merges


def _byte_level(file: GGUFFile, tokens: list[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name, split = _split_of(file)
    pairs: Any = [tuple(merge.split(" ")) for merge in _stated_merges(file)]
    try:
        model = models.BPE(
            vocab=_vocabulary(file, tokens),
            merges=pairs,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
            # a word that is a token stays whole, whatever the merges say
            ignore_merges=name in (*_LLAMA3_NAMES, "tekken"),
        )
    except Exception as error:  # the library raises a bare Exception
        raise ModelFileError(f"[load_gguf] {file.path}: the merges are damaged: {error}") from None
    backend = Tokenizer(model)
    if split == _QWEN2:
        backend.normalizer = normalizers.NFC()
    if split in ("gpt2", "digits"):
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = (
            byte_level if split == "gpt2" else pre_tokenizers.Sequence([digits, byte_level])
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(file: GGUFFile, tokens: list[str]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    gemma = file.architecture.startswith("gemma")
    if gemma:
        # runs of spaces are stored as spaces, while the normalised text has the mark
        tokens = [_SPACE * len(t) if t and not t.strip(" ") else t for t in tokens]
    vocabulary = _vocabulary(file, tokens)
    unknown = _token(file, tokens, "unknown_token_id")
    model = models.BPE(
        vocab=vocabulary,
        merges=_merges(file, vocabulary, by_position=gemma),
        fuse_unk=True,
        byte_fallback=True,
        unk_token=unknown if gemma else None,
    )
    backend = Tokenizer(model)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if gemma:
        backend.normalizer = normalizers.Replace(" ", _SPACE)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    else:
        prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=_SPACE, prepend_scheme="first" if prefix else "never", split=False
        )
        if prefix:
            steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges(file: GGUFFile, vocabulary: dict[str, int], by_position: bool) -> list[tuple[str, str]]:
    """The merges of a sentencepiece vocabulary, best first.

    Every split of a token into two tokens is a merge, as good as the token it makes: its score, or
    for Gemma (whose scores say nothing) its place in the vocabulary. Between equals the longer left
    part goes first, then the longer right part.
    """
    stated = file.metadata.get("tokenizer.ggml.merges")
    if isinstance(stated, list):
        return [(left, right) for left, right in (merge.split(" ") for merge in stated)]
    scores = file.metadata.get("tokenizer.ggml.scores")
    if not by_position and (not isinstance(scores, list) or len(scores) != len(vocabulary)):
        raise ModelFileError(
            f"[load_gguf] {file.path}: a tokenizer without merges needs one score a token: got "
            f"{len(scores) if isinstance(scores, list) else scores!r} for {len(vocabulary)} tokens"
        )
    merges: list[tuple[float, int, int, str, str]] = []
    for token, index in vocabulary.items():
        score = -index if by_position else scores[index]  # type: ignore[index]
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        splits = [pair for pair in splits if pair[0] in vocabulary and pair[1] in vocabulary]
        splits.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges.extend((score, len(left), len(right), left, right) for left, right in splits)
    merges.sort(key=lambda merge: merge[:3], reverse=True)  # stable: ties stay in place
    return [merge[3:] for merge in merges]


def _add_whole_tokens(file: GGUFFile, backend: Tokenizer, tokens: list[str]) -> None:
    """Control tokens (special) and user-defined ones are matched whole, never cut by merges."""
    from tokenizers import AddedToken

    types: list[Any] = file.metadata.get("tokenizer.ggml.token_type") or []
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(token, normalized=False, special=special)
            for token, token_type in zip(tokens, types)
            if token_type == kind and backend.token_to_id(token) is not None
        ]
        if special:
            backend.add_special_tokens(added)
        elif added:
            backend.add_tokens(added)
