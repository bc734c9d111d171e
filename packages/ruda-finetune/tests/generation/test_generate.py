"""Batched generation: equal to single rows, ends, stops, progress, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ruda_finetune import DataError, FinetuneError, TemplateError
from ruda_finetune.generation import generate, generate_tokens, stop_token_ids

PROMPTS = ["a", "The quick brown fox", "xyz" * 10, "Hello, world!", "1972", "ß", "x y z"]


def greedy_by_hand(model: Any, ids: list[int], count: int, ends: tuple[int, ...]) -> list[int]:
    """No cache, no padding: the whole row again for every token."""
    row = list(ids)
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([row]).to(model.device)).logits[0, -1]
        row.append(int(logits.float().cpu().argmax()))
        if row[-1] in ends:
            break
    return row[len(ids) :]


def test_a_batch_equals_single_rows(model: Any, tokenizer: Any) -> None:
    rows = [tokenizer(text).input_ids for text in PROMPTS]
    ends = stop_token_ids(model, tokenizer)
    wanted = [greedy_by_hand(model, row, 8, ends) for row in rows]
    for batch_size in (1, 3, 16):
        got = generate_tokens(
            model, rows, tokenizer=tokenizer, max_new_tokens=8, batch_size=batch_size
        )
        assert got == wanted, batch_size
    texts = generate(model, tokenizer, PROMPTS, max_new_tokens=8, batch_size=3)
    assert texts == [tokenizer.decode(row, skip_special_tokens=True) for row in wanted]
    assert len({tuple(row) for row in wanted}) > 3  # the model does not say one thing


def test_messages(model: Any, tokenizer: Any) -> None:
    """Chats and texts may be mixed; the template's special tokens are not added twice."""
    chat = [{"role": "user", "content": "How old?"}]
    text = "<|im_start|>user\nHow old?<|im_end|>\n<|im_start|>assistant\n"
    both = generate(model, tokenizer, [chat, text, "plain"], max_new_tokens=6)
    assert both[0] == both[1]
    assert both[2] == generate(model, tokenizer, ["plain"], max_new_tokens=6)[0]
    other = "{% for m in messages %}{{ m.content }}{{ mark }}{% endfor %}"
    assert generate(
        model,
        tokenizer,
        [chat],
        max_new_tokens=6,
        chat_template=other,
        template_kwargs={"mark": "!"},
    ) == generate(model, tokenizer, ["How old?!"], max_new_tokens=6)


def first_tokens(model: Any, tokenizer: Any, count: int = 6) -> list[int]:
    return generate_tokens(
        model, [tokenizer(PROMPTS[1]).input_ids], tokenizer=tokenizer, max_new_tokens=count
    )[0]


def test_end_tokens(model: Any, tokenizer: Any) -> None:
    """The ends of the generation config and of the tokenizer both count; the end is the last id."""
    assert stop_token_ids(model, tokenizer) == (tokenizer.eos_token_id,)
    free = first_tokens(model, tokenizer)
    end = free[2]
    model.generation_config.eos_token_id = [end, 1]
    assert stop_token_ids(model, tokenizer) == (end, 1, tokenizer.eos_token_id)
    expected = free[: free.index(end) + 1]
    assert first_tokens(model, tokenizer) == expected
    rows = [tokenizer(PROMPTS[1]).input_ids, tokenizer(PROMPTS[2]).input_ids]
    in_batch = generate_tokens(model, rows, tokenizer=tokenizer, max_new_tokens=6)
    assert in_batch[0] == expected  # the row that goes on does not lengthen it
    assert model.generation_config.eos_token_id == [end, 1]


def test_stop_texts(model: Any, tokenizer: Any) -> None:
    """A row ends with the text that completes the stop, in a batch too, and is cut before it."""
    text = generate(model, tokenizer, [PROMPTS[1]], max_new_tokens=12)[0]
    stop = text[3:5]
    expected = text[: text.index(stop)]
    steps: list[int] = []
    got = generate(
        model,
        tokenizer,
        [PROMPTS[1]],
        max_new_tokens=12,
        stop=["never?", stop],
        progress=lambda p: steps.append(p.steps),
    )
    assert got == [expected]
    assert max(steps) <= len(text[: text.index(stop) + len(stop)].encode())
    batch = generate(model, tokenizer, PROMPTS, max_new_tokens=12, stop=[stop])
    alone = [generate(model, tokenizer, [p], max_new_tokens=12, stop=[stop])[0] for p in PROMPTS]
    assert batch == alone
    assert batch[1] == expected
    assert not any(stop in row for row in batch)


def test_stop_at_a_special_token(model: Any, tokenizer: Any) -> None:
    ids = first_tokens(model, tokenizer)
    with torch.no_grad():  # the token that came third is now <|im_start|>
        head = model.lm_head.weight
        head[1].copy_(head[ids[2]] * 1.5)
    text = generate(model, tokenizer, [PROMPTS[1]], max_new_tokens=6, stop=["<|im_start|>"])[0]
    whole = generate(model, tokenizer, [PROMPTS[1]], max_new_tokens=6, skip_special_tokens=False)[0]
    assert "<|im_start|>" in whole
    assert text == whole[: whole.index("<|im_start|>")]


def test_progress(model: Any, tokenizer: Any) -> None:
    seen: list[Any] = []
    generate_tokens(model, [[5, 6]] * 5, max_new_tokens=3, batch_size=2, progress=seen.append)
    assert [p.done for p in seen if p.done != 0][-1] == 5
    assert [(p.done, p.steps) for p in seen] == [
        (0, 1),
        (0, 2),
        (0, 3),
        (2, 3),
        (2, 4),
        (2, 5),
        (2, 6),
        (4, 6),
        (4, 7),
        (4, 8),
        (4, 9),
        (5, 9),
    ]
    assert {p.total for p in seen} == {5}


def test_sampling(model: Any, tokenizer: Any) -> None:
    """Repeatable by seed, different from greedy, and the generators outside are untouched."""
    options: dict[str, Any] = {"max_new_tokens": 10, "temperature": 3.0}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = generate(model, tokenizer, PROMPTS, seed=1, **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert generate(model, tokenizer, PROMPTS, seed=1, **options) == first
    assert generate(model, tokenizer, PROMPTS, seed=2, **options) != first
    greedy = generate(model, tokenizer, PROMPTS, max_new_tokens=10)
    assert first != greedy
    assert generate(model, tokenizer, PROMPTS, seed=1, **options | {"top_k": 1}) == greedy


def test_defaults_of_the_model_do_not_leak(model: Any, tokenizer: Any) -> None:
    greedy = generate(model, tokenizer, PROMPTS, max_new_tokens=10)
    config = model.generation_config
    config.do_sample, config.temperature, config.top_k = True, 5.0, 3
    config.repetition_penalty, config.no_repeat_ngram_size = 1.9, 1
    assert generate(model, tokenizer, PROMPTS, max_new_tokens=10) == greedy
    assert model.generation_config is config


def test_training_mode_comes_back(model: Any, tokenizer: Any) -> None:
    model.train()
    model.config.use_cache = False
    generate(model, tokenizer, ["a"], max_new_tokens=2)
    assert model.training
    with pytest.raises(DataError):
        generate(model, tokenizer, ["a", ""], max_new_tokens=2)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_nothing_to_do(model: Any, tokenizer: Any) -> None:
    assert generate(model, tokenizer, []) == []


def test_refusals(model: Any, tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"write \[prompt\]"):
        generate(model, tokenizer, "one prompt")
    with pytest.raises(DataError, match=r"write \[prompt\]"):
        generate(model, tokenizer, [{"role": "user", "content": "x"}])  # type: ignore[list-item]
    with pytest.raises(DataError, match="prompt 1 has no tokens"):
        generate(model, tokenizer, ["a", ""])
    with pytest.raises(
        DataError, match=r"prompt 0 has 248 tokens; with max_new_tokens=9 .* 256 positions"
    ):
        generate(model, tokenizer, ["x" * 248], max_new_tokens=9)
    size = model.config.vocab_size
    for ids, wrong in (([3, size], size), ([-1, 3], -1)):
        with pytest.raises(DataError, match=f"prompt 1 holds the token {wrong}; .* has {size} tok"):
            generate_tokens(model, [[3], ids], tokenizer=tokenizer)
    with pytest.raises(FinetuneError, match="need a temperature above 0"):
        generate(model, tokenizer, ["a"], top_p=0.9)
    for name, value in (
        ("max_new_tokens", 0),
        ("batch_size", 0),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_k", -1),
    ):
        with pytest.raises(FinetuneError, match=f"{name} must be"):
            generate(model, tokenizer, ["a"], **{name: value})
    with pytest.raises(FinetuneError, match="empty text"):
        generate(model, tokenizer, ["a"], stop=[""])
    with pytest.raises(FinetuneError, match="stop texts need a tokenizer"):
        generate_tokens(model, [[5]], stop=["x"])
    with pytest.raises(FinetuneError, match="Linear has no generate method"):
        generate(torch.nn.Linear(2, 2), tokenizer, ["a"])  # type: ignore[arg-type]
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        with pytest.raises(TemplateError, match="prompt 0 is a list of messages"):
            generate(model, tokenizer, [[{"role": "user", "content": "x"}]])
    finally:
        tokenizer.chat_template = template
    with pytest.raises(TemplateError, match="the chat template failed on prompt 0"):
        generate(
            model,
            tokenizer,
            [[{"role": "user", "content": "x"}]],
            chat_template="{{ raise_exception('no') }}",
        )
