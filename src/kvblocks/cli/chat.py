"""`kvblocks chat`: talk with a model on the CPU; what was said before is in the cache."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvblocks import __version__
from kvblocks.cli import model as options
from kvblocks.cli.generate import visible
from kvblocks.cli.output import check_outputs, plain_console, write_json

HELP = """Talk with a model on the CPU.

Type a line and press Enter; an empty line is skipped, Ctrl-D ends. Each answer is followed by what it cost: a turn's
prompt is the whole chat so far, of which all but the last lines should come from the cache.

\b
  kvblocks chat
  kvblocks chat --system "Answer in one sentence." --temperature 0.7
  printf 'Hello!\\nWho are you?\\n' | kvblocks chat --json chat.json

Exit codes: 0 done, 2 bad input or usage, 130 interrupted.
"""


def command(
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    model: options.ModelPath = None,
    kv_memory: options.KVMemory = None,
    block_size: options.BlockSize = 16,
    max_model_len: options.MaxModelLen = None,
    caching: options.Caching = True,
    num_draft_tokens: options.DraftTokens = 0,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the chat as JSON; - is standard output.")
    ] = None,
) -> None:
    from kvblocks.engine import SamplingParams

    check_outputs({"--json": json_path})
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    settings = options.settings_of(
        kv_memory,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=1,
        enable_caching=caching,
        num_draft_tokens=num_draft_tokens,
    )
    loaded, engine = options.start(model, settings)
    notes, said = plain_console(stderr=True), plain_console(stderr=json_path == "-")
    messages = [] if system is None else [{"role": "system", "content": system}]
    turns = []
    while True:
        if sys.stdin.isatty():
            notes.print("> ", end="")
        line = sys.stdin.readline()
        if not line:
            break
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.strip()})
        ids = loaded.tokenizer.encode_chat(messages)
        generation = engine.add(ids, params, on_output=lambda output: said.print(visible(output.text), end=""))
        while engine.has_work:
            engine.step()
        said.print()
        (answer,) = generation.answers
        messages.append({"role": "assistant", "content": answer.text})
        first_s, made = (answer.first_token_s or 0) - answer.arrival_time_s, len(answer.output_token_ids)
        notes.print(
            f"[{len(ids):,} tokens, {generation.num_cached_tokens:,} cached; first after {first_s:.2f} s; {made} new]"
        )
        turns.append(
            {"prompt_tokens": len(ids), "cached_tokens": generation.num_cached_tokens, "time_to_first_token_s": first_s}
        )
    if json_path is not None:
        write_json({"kvblocks": __version__, "model": loaded.name, "messages": messages, "turns": turns}, json_path)
