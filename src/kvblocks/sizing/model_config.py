"""A model's `config.json`, read and looked into: which part describes the language model, and what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvblocks.errors import UsageError

LANGUAGE_PARTS = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "decoder_config",
    "language_model_config",
)
"""Where multimodal models keep their language model, in the order in which they are looked for."""


LARGEST = 2**40
"""No count or size of a model is larger."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model. `raw` is the whole file, `text` the part about the language model (the whole file where it has none).

    `path` is the folder of the file, for weights that lie beside it; None when the config was given as data.
    """

    raw: Mapping[str, Any]
    text: Mapping[str, Any]
    path: Path | None = None
    title: str = ""
    """What to call it, where it has no path."""
    _read: list[tuple[str, Any]] = field(default_factory=list, repr=False, compare=False)  # the field read last

    @classmethod
    def from_data(cls, data: Mapping[str, Any], path: Path | None = None, title: str = "") -> ModelConfig:
        """A config from its data. Raises UsageError when it is none."""
        if not isinstance(data, Mapping):
            raise UsageError(f"{path or 'config'}: a config is a JSON object with fields, not {type(data).__name__}")
        text: Mapping[str, Any] = data
        for _ in range(3):  # a thinker has a text part of its own
            inner = next((text[name] for name in LANGUAGE_PARTS if isinstance(text.get(name), Mapping)), None)
            if inner is None:
                break
            text = inner
        return cls(data, text, path, title)

    @classmethod
    def load(cls, path: str | Path) -> ModelConfig:
        """Read `config.json`: the file itself or the folder that holds it.

        Raises UsageError naming the path and what it should be.
        """
        given = Path(path)
        file = given / "config.json" if given.is_dir() else given
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            if given.is_dir():
                beside = sorted(child.name for child in given.iterdir())[:5]
                raise UsageError(
                    f"{given}: has no config.json (it holds {', '.join(beside) or 'nothing'}); name the folder of a "
                    "Hugging Face model"
                ) from None
            raise UsageError(
                f"{given}: no such file or folder; name a config.json or the folder that holds it"
            ) from None
        except OSError as error:
            raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
        kind = _not_json(content)
        if kind is not None:
            raise UsageError(
                f"{file}: is {kind}, not a config.json; name the config.json of the model it was made from"
            )
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{file}: is not JSON: {error}; name a config.json") from None
        if not isinstance(data, dict):
            raise UsageError(f"{file}: a config is a JSON object with fields, not {type(data).__name__}")
        if isinstance(data.get("weight_map"), dict):
            raise UsageError(f"{file}: is an index of weights, not a config; name the config.json beside it")
        return cls.from_data(data, file.parent, str(given) if file.parent == Path() else "")

    @property
    def model_type(self) -> str:
        """The type that names the family; "" when the file does not say."""
        return str(self.raw.get("model_type") or "")

    @property
    def text_type(self) -> str:
        """The type of the language model; that of the whole file where the part has none."""
        return str(self.text.get("model_type") or self.model_type)

    @property
    def architectures(self) -> tuple[str, ...]:
        """Class names, as the file gives them."""
        given = self.raw.get("architectures") or self.text.get("architectures") or ()
        return tuple(str(name) for name in given) if isinstance(given, Sequence) and not isinstance(given, str) else ()

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of the fields that is there and not null, of the language model's part and then of the file."""
        for part in (self.text, self.raw):
            for name in names:
                if part.get(name) is not None:
                    self._read[:] = [(name, part[name])]
                    return part[name]
        return default

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what goes wrong with a field of an unexpected type or value into a UsageError that names the field.

        Families read their fields where they need them, so that is where a wrong one shows.
        """
        try:
            yield
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            if isinstance(error, UsageError) or not self._read:
                raise
            name, value = self._read[-1]
            raise UsageError(
                f"{self.name}: {name}={_short(value)} is not what a {self.text_type} can have there ({error}); correct "
                "the config"
            ) from error

    def whole(self, *names: str, default: int | None = None) -> int:
        """A whole number of a field. Raises UsageError naming the field when it is missing or something else."""
        value = self.get(*names, default=default)
        if value is None:
            raise UsageError(f"{self.name}: the config has no {' or '.join(names)}; it must be a whole number")
        name = self._read[-1][0] if self._read and self._read[-1][1] is value else names[0]
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value != int(value):
            raise UsageError(f"{self.name}: {name}={_short(value)} must be a whole number")
        if value < 0:
            raise UsageError(f"{self.name}: {name}={value!r} must not be negative")
        if value > LARGEST:
            raise UsageError(f"{self.name}: {name}={value!r} is larger than that of any model; correct the config")
        return int(value)

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.title or (str(self.path) if self.path is not None else self.model_type or "config")

    def fields(self) -> Iterator[str]:
        """The names of the language model's fields."""
        return iter(self.text)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _not_json(content: bytes) -> str | None:
    """What the file is, where people mistake it for a config."""
    if content.startswith(b"GGUF"):
        return "a GGUF file (weights)"
    if content.startswith(b"PK\x03\x04"):
        return "a zip archive (PyTorch weights)"
    if content.startswith(b"\x80"):
        return "a pickle (PyTorch weights)"
    if len(content) > 9 and content[8:9] == b"{" and int.from_bytes(content[:8], "little") < len(content):
        return "a safetensors file (weights)"
    return None
