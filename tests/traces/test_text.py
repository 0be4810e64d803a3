"""Text traces: the tokenizer and the chat template decide what is shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvblocks.errors import TraceError, UsageError
from kvblocks.traces import open_trace

TEMPLATE = (
    "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a tokenizer that knows single characters."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {chr(c): c for c in range(128)} | {"<unk>": 128}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def read(folder: Path, *records: dict[str, Any]) -> list[str]:
    """The prompts' texts again, from their token ids."""
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with open_trace(str(path), tokenizer=str(folder)) as trace:
        return ["".join(map(chr, request.token_ids or ())) for request in trace]


CHAT = [{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def test_prompts_become_token_ids(folder: Path) -> None:
    assert read(folder, {"prompt": "hello"}, {"prompt_token_ids": [104, 105]}) == ["hello", "hi"]


def test_messages_without_a_template_are_rendered_plainly(folder: Path) -> None:
    assert read(folder, {"messages": CHAT}) == ["<|system|>\nbe kind\n<|user|>\nhi\n<|assistant|>\n"]


def test_messages_follow_the_chat_template(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "bos_token": {"content": "^"}})
    )
    assert read(folder, {"messages": CHAT[:1]}) == ["^system: be kind\nassistant:"]
    (folder / "chat_template.jinja").write_text("{{ messages | length }}")
    assert read(folder, {"messages": CHAT}) == ["2"]


def test_what_a_template_refuses_is_a_bad_line(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
    with pytest.raises(TraceError, match=r"cannot be rendered by the chat template \('no system role'\)"):
        read(folder, {"messages": CHAT})
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(TraceError, match="cannot be rendered"):
        read(folder, {"messages": CHAT})
    with pytest.raises(TraceError, match="must be a list of chat messages"):
        read(folder, {"messages": "hi"})
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(UsageError, match="the chat template cannot be read"):
        read(folder, {"messages": CHAT})


def test_a_prompt_without_tokens_is_a_bad_line(folder: Path) -> None:
    with pytest.raises(TraceError, match="has no tokens"):
        read(folder, {"prompt": ""})
