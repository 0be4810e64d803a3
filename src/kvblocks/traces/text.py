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
        """The ids of a plain prompt, special tokens added as the tokenizer does. Raises BadValue."""
        return self._encode("prompt", prompt, add_special_tokens=True)

    def encode_messages(self, messages: list[Any]) -> list[int]:
        """The ids of a chat that waits for the assistant. Raises BadValue."""
        if self._template is None:
            lines = [f"<|{message.get('role', '')}|>\n{_content(message)}\n" for message in messages]
            return self._encode("messages", "".join(lines) + "<|assistant|>\n", add_special_tokens=True)
        try:
            rendered = self._template.render(messages=messages, add_generation_prompt=True, **self._variables)
        except Exception as error:  # a template is a program of its own; whatever it raises is about these messages
            raise BadValue(
                "messages", f"cannot be rendered by the chat template ({shown(str(error))}); mend the messages"
            ) from error
        return self._encode("messages", rendered, add_special_tokens=False)

    def _encode(self, field: str, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        except Exception as error:  # the package raises bare Exceptions
            raise BadValue(field, f"cannot be encoded ({shown(str(error))}); mend the text") from error


def _content(message: dict[str, Any]) -> str:
    """The text of a message; of its parts, where it has several."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def load_encoder(path: str) -> Encoder:
    """Load `tokenizer.json` from a file or directory, with the template beside it.

    Raises UsageError naming the path, MissingExtraError without the packages.
    """
    if not path:
        raise UsageError("--tokenizer '' is empty; name a tokenizer.json or its directory")
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
        raise UsageError(
            f"--tokenizer {path}: not a tokenizer.json ({shown(str(error))}); name one, or its directory"
        ) from error
    # Both would change what a prompt is: a trace says it all.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    source, variables = load_template(file.parent)
    return Encoder(tokenizer, None if source is None else compile_template(source, file.parent), variables)


def load_template(folder: Path) -> tuple[str | None, dict[str, str]]:
    """The chat template of `chat_template.jinja` or `tokenizer_config.json`, and the tokens that it may name."""
    config: Any = {}
    file = folder / "tokenizer_config.json"
    try:
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise UsageError(f"{file}: is not a JSON object; fetch it again, or move it away to do without a template")
        source = config.get("chat_template")
        file = folder / "chat_template.jinja"
        if file.is_file():
            source = file.read_text(encoding="utf-8")
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{file}: cannot be read ({error}); fetch it again, or move it away to do without a template"
        ) from error
    if isinstance(source, list):  # several templates by name
        named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
        source = named.get("default")
    variables = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        variables[name] = token if isinstance(token, str) else ""
    return source if isinstance(source, str) else None, variables


def compile_template(source: str, folder: Path) -> Any:
    """The template, in a sandbox, with what such templates expect to find. No clock: the same text, the same tokens."""
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtraError("jinja2", "text", "rendering chat messages") from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(source)
    except Exception as error:  # a broken template, however broken
        raise UsageError(
            f"{folder}: the chat template cannot be read ({shown(str(error))}); mend it, or move it away to do without"
        ) from error


def _to_json(value: Any, indent: int | None = None) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise ValueError(message)
