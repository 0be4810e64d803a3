"""Text to token ids and back, with the model's own vocabulary and chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvblocks.engine.weights import GGUFFile
from kvblocks.errors import MissingExtraError, UsageError
from kvblocks.traces.text import compile_template, load_template

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "gpt-2": (_GPT2,),
    "default": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3 % "1,3",),
    "qwen2": (_LLAMA3 % "1",),
}
"""By the name that a GGUF file gives: the patterns by which text is cut before pairs are merged."""
_CONTROL, _USER_DEFINED = 3, 4
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>")


class Tokenizer:
    """A vocabulary; `end_ids` are the tokens that end an answer."""

    def __init__(self, tokenizer: Any, template: Any, variables: dict[str, str], end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._variables = variables
        self.end_ids = end_ids

    def encode(self, text: str) -> list[int]:
        """The ids of a plain prompt."""
        return list(self._tokenizer.encode(text).ids)

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The ids of a chat that waits for the assistant. Raises UsageError when the template refuses it."""
        if self._template is None:
            raise UsageError("the model has no chat template; send a plain prompt instead")
        try:
            text = self._template.render(messages=messages, add_generation_prompt=True, **self._variables)
        except Exception as error:  # a template is a program of its own
            raise UsageError(f"messages: the chat template refuses them: {error}") from error
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out. An unfinished character is U+FFFD."""
        return str(self._tokenizer.decode(list(token_ids)))

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Tokenizer:
        """The vocabulary inside a GGUF file. Raises UsageError for a kind that is not known."""
        try:
            from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
            from tokenizers import Tokenizer as Fast
        except ImportError as error:
            raise MissingExtraError("tokenizers", "engine", "reading a vocabulary") from error
        kind, cut = file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre", "default")
        if kind != "gpt2" or cut not in _SPLITS:
            raise UsageError(
                f"{file.path}: its vocabulary ({kind}, {cut}) is not known; known are gpt2 with {', '.join(_SPLITS)}"
            )
        tokens, types = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
        merges = [tuple(pair.split(" ")) for pair in file.get("tokenizer.ggml.merges")]
        fast = Fast(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[cut]]
        fast.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
        fast.decoder = decoders.ByteLevel()
        special = [AddedToken(t, special=True) for t, n in zip(tokens, types, strict=True) if n == _CONTROL]
        fast.add_special_tokens(special)
        fast.add_tokens([AddedToken(t) for t, n in zip(tokens, types, strict=True) if n == _USER_DEFINED])
        source = file.get("tokenizer.chat_template")
        names = {name: file.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
        variables = {f"{name}_token": tokens[at] if at is not None else "" for name, at in names.items()}
        ends = {at for token in _ENDS if (at := fast.token_to_id(token)) is not None} | {names["eos"]} - {None}
        template = None if source is None else compile_template(source, file.path)
        return cls(fast, template, variables, frozenset(ends))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The `tokenizer.json` of a Hugging Face folder, and its chat template."""
        try:
            from tokenizers import Tokenizer as Fast
        except ImportError as error:
            raise MissingExtraError("tokenizers", "engine", "reading a vocabulary") from error
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UsageError(f"{folder}: has no tokenizer.json; fetch it into the folder")
        try:
            fast = Fast.from_file(str(file))
        except Exception as error:  # the package raises bare Exceptions
            raise UsageError(f"{file}: is no tokenizer.json ({error}); fetch it again") from error
        fast.no_truncation()
        fast.no_padding()
        source, variables = load_template(folder)
        ends = {at for token in _ENDS if (at := fast.token_to_id(token)) is not None}
        for name in ("config.json", "generation_config.json"):
            if (folder / name).is_file():
                given = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
                ends |= set(given if isinstance(given, list) else [given]) - {None}
        return cls(fast, None if source is None else compile_template(source, folder), variables, frozenset(ends))


class TextStream:
    """The text of a request as its tokens come: what cannot change any more, and nothing of a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._hold = max(map(len, stop), default=1) - 1
        self._ids: list[int] = []
        self._context = self._read = 0  # tokens whose text is known; those from `_context` on are decoded with the next
        self._given = 0
        self.text = ""
        """All text so far, without a stop string."""
        self.stopped = False
        """Whether a stop string was met."""

    def push(self, token_id: int) -> str:
        """Add a token; the text that is new and certain."""
        self._ids.append(token_id)
        new = self._undecoded()
        if not new or new.endswith("\ufffd"):
            return ""
        self._context, self._read = self._read, len(self._ids)
        self.text += new
        found = [at for text in self._stop if (at := self.text.find(text, self._given)) >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True
        return self._give(len(self.text) - (0 if found else self._hold))

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        if not self.stopped:
            self.text += self._undecoded()
        return self._give(len(self.text))

    def _undecoded(self) -> str:
        """The text of the tokens that are not in `text` yet; some vocabularies need those before to tell."""
        known = self._tokenizer.decode(self._ids[self._context : self._read])
        return self._tokenizer.decode(self._ids[self._context :])[len(known) :]

    def _give(self, end: int) -> str:
        start, self._given = self._given, max(end, self._given)
        return self.text[start : self._given]
