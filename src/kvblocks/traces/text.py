"""Text to token ids: a `tokenizer.json`, and a chat template where there is one.

Without a template messages are rendered as `<|role|>` lines, each followed by its content, and a last `<|assistant|>`
line: no model's own format, but the same text always gives the same tokens, which is what a cache sees.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvblocks.errors import MissingExtraError, UsageError
from kvblocks.traces.values import BadValue, shown


class Encoder:
    """A tokenizer with an optional chat template."""

    def __init__(self, tokenizer: Any, template: Any, variables: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._variables = variables

    def encode_prompt(self, prompt: str) -> list[int]:
        """The ids of a plain prompt, special tokens added as the tokenizer does."""
        return list(self._tokenizer.encode(prompt).ids)

    def encode_messages(self, messages: list[Any]) -> list[int]:
        """The ids of a chat that waits for the assistant."""
        if self._template is None:
            lines = [f"<|{message.get('role', '')}|>\n{_content(message)}\n" for message in messages]
            return self.encode_prompt("".join(lines) + "<|assistant|>\n")
        try:
            rendered = self._template.render(messages=messages, add_generation_prompt=True, **self._variables)
        except Exception as error:  # a template is a program of its own; whatever it raises is about these messages
            raise BadValue("messages", f"cannot be rendered by the chat template: {shown(str(error))}") from error
        return list(self._tokenizer.encode(rendered, add_special_tokens=False).ids)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def load_encoder(path: str) -> Encoder:
    """Load `tokenizer.json` from a file or directory, with the template beside it.

    Raises UsageError naming the path, MissingExtraError without the packages.
    """
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("tokenizers", "text", "reading a trace of text") from error
    if not file.is_file():
        raise UsageError(f"--tokenizer {path}: {file} does not exist; name a tokenizer.json or its directory")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises bare Exceptions
        raise UsageError(f"--tokenizer {path}: not a tokenizer.json: {shown(str(error))}") from error
    template, variables = _load_template(file.parent)
    return Encoder(tokenizer, template, variables)


def _load_template(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The chat template of `chat_template.jinja` or `tokenizer_config.json`, and the tokens that it may name."""
    config: dict[str, Any] = {}
    file = folder / "tokenizer_config.json"
    if file.is_file():
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{file}: cannot be read: {error}") from error
    source = config.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(source, list):
        source = next((item.get("template") for item in source if item.get("name") == "default"), None)
    if not isinstance(source, str):
        return None, {}
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtraError("jinja2", "text", "rendering chat messages") from error
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    variables = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        variables[name] = token.get("content", "") if isinstance(token, dict) else token or ""
    try:
        return environment.from_string(source), variables
    except Exception as error:  # a broken template, however broken
        raise UsageError(f"{folder}: the chat template cannot be read: {error}") from error


def _raise(message: str) -> None:
    raise ValueError(message)
