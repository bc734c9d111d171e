"""Chat templates: finding `{% generation %}` by parsing, and a ChatML template that carries it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import TemplateError
from .records import ROLES

#: The system prompt that SmolLM2's template writes when a chat has none of its own.
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chatml_training_template(default_system: str | None = SMOLLM2_SYSTEM) -> str:
    """A ChatML template whose assistant turns stand inside `{% generation %}`.

    `default_system` is the system message written before a chat that does not start with one
    (None: nothing is written). The stop token `<|im_end|>` is inside the marked part, the
    newline after it is not: a model that has stopped writes no newline. A role that is not one of
    `ROLES` is refused.
    """
    system = ""
    if default_system is not None:
        text = jinja_literal(f"<|im_start|>system\n{default_system}<|im_end|>\n")
        system = (
            "{% if loop.first and messages[0]['role'] != 'system' %}{{ " + text + " }}{% endif %}"
        )
    roles = ", ".join(ROLES)
    known = "[" + ", ".join(jinja_literal(role) for role in ROLES) + "]"
    refusal = (
        "{% if message['role'] not in " + known + " %}{{ raise_exception('message ' ~ loop.index ~ "
        "' has the role ' ~ message['role'] | tojson ~ "
        + jinja_literal(f", wanted one of {roles}")
        + ") }}{% endif %}"
    )
    return (
        "{% for message in messages %}"
        + refusal
        + system
        + "{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
        "{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )


def jinja_literal(text: str) -> str:
    """`text` as a string literal of Jinja's expression language."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


#: Renders byte for byte like SmolLM2's own template, and marks what the assistant writes.
CHATML_TRAINING_TEMPLATE = chatml_training_template()


class _GenerationTag(jinja2.ext.Extension):
    """Parses `{% generation %} … {% endgeneration %}` into a node that can be found again."""

    tags = {"generation"}  # noqa: RUF012 - the attribute's type is Jinja's

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> str:
        return str(caller())


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    # The options of transformers' own environment: a template parses here as it does there.
    return ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )


def generation_blocks(template: str) -> list[int]:
    """The line of every `{% generation %}` block of a Jinja template, by parsing it.

    Text that only looks like the tag (in a comment, in a string, between `{% raw %}`) is not one.
    Raises `TemplateError` when the template does not parse.
    """
    try:
        tree = _environment().parse(template)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(
            f"[chat template] line {error.lineno}: {error.message}; the template must be Jinja"
        ) from None
    lines = []
    for block in tree.find_all(nodes.CallBlock):
        function = block.call.node
        if (
            isinstance(function, nodes.ExtensionAttribute)
            and function.identifier == _GenerationTag.identifier
        ):
            lines.append(block.lineno)
    return sorted(lines)


def resolve_chat_template(tokenizer: Any, chat_template: str | None, train_on_prompt: bool) -> str:
    """The template to render with: `chat_template`, or else the tokenizer's own.

    Raises `TemplateError` when there is none, when it does not parse, or when it marks no
    assistant text and only assistant text is to be learned.
    """
    template = chat_template
    if template is None:
        try:
            template = tokenizer.get_chat_template()
        except ValueError:
            raise TemplateError(
                "[SFTCollator] the tokenizer has no chat template: pass chat_template=, for "
                "example ruda_finetune.CHATML_TRAINING_TEMPLATE for a ChatML model"
            ) from None
    blocks = generation_blocks(template)
    if not blocks and not train_on_prompt:
        raise TemplateError(
            "[SFTCollator] the chat template has no {% generation %} block, so the assistant's "
            "tokens cannot be told from the prompt. Put what the assistant writes, the stop token "
            "included, between {% generation %} and {% endgeneration %} and pass the result as "
            f"chat_template= (train_on_prompt=True learns the prompts too). {_advice(tokenizer)}"
        )
    return template


def _advice(tokenizer: Any) -> str:
    try:
        own = own_template_is_chatml(tokenizer)
    except ValueError:
        own = False
    if own:
        return (
            "This tokenizer's own template writes the same text as "
            "ruda_finetune.CHATML_TRAINING_TEMPLATE, which has the markers: pass that."
        )
    return (
        "For models that speak ChatML (<|im_start|>role … <|im_end|>) there is "
        "ruda_finetune.CHATML_TRAINING_TEMPLATE; compare its text with the model's own template "
        "first."
    )


_SAMPLES: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "a"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": "a\n'b'"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": " b\n"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ],
)


def own_template_is_chatml(
    tokenizer: Any,
    training_template: str = CHATML_TRAINING_TEMPLATE,
    template_kwargs: Mapping[str, Any] | None = None,
) -> bool:
    """Whether the tokenizer's own chat template writes the same text as `training_template`.

    Compared on chats with and without a system message, with one and several turns, and with the
    generation prompt. Raises `ValueError` when the tokenizer has no template.
    """
    templates = (tokenizer.get_chat_template(), training_template)
    for messages in _SAMPLES:
        for prompt in (False, True):
            options = {**(template_kwargs or {}), "add_generation_prompt": prompt}
            try:
                own, ours = (
                    tokenizer.apply_chat_template(
                        messages, chat_template=template, tokenize=False, **options
                    )
                    for template in templates
                )
            except (jinja2.TemplateError, TypeError):  # a template that refuses such chats
                return False
            if own != ours:
                return False
    return True
