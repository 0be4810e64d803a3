"""`kvblocks generate`: answer prompts with a model on the CPU, through the cache."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvblocks import __version__
from kvblocks.cli import model as options
from kvblocks.cli.output import check_outputs, plain_console, write_json
from kvblocks.cli.streams import printable
from kvblocks.errors import UsageError

HELP = """Answer prompts with a model on the CPU, all of them in one batch.

\b
  kvblocks generate "What is the capital of France?"
  kvblocks generate --file prompts.txt --max-tokens 50 --json answers.json
  echo "Write a haiku about memory." | kvblocks generate --file -
  kvblocks generate --raw "Once upon a time" --temperature 0.8 --seed 1 --n 3

Prompts come from arguments, or one a line from a file. Each is sent as a chat of one message; --raw sends it as it is.
Prompts that begin alike share blocks: the table on standard error says how many tokens were cached.

Exit codes: 0 done, 2 bad input or usage, 130 interrupted.
"""


def command(
    prompts: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", help="What to answer.")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Prompts, one a line; - is standard input.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Go on with the prompt itself, without the chat template.")
    ] = False,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    n: Annotated[int, typer.Option("--n", parser=options.whole_number, metavar="N", help="Answers per prompt.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; repeat it.")] = None,
    model: options.ModelPath = None,
    kv_memory: options.KVMemory = None,
    num_blocks: options.NumBlocks = None,
    block_size: options.BlockSize = 16,
    kv_dtype: options.KVDtype = "float32",
    max_model_len: options.MaxModelLen = None,
    max_num_batched_tokens: options.MaxBatchedTokens = 512,
    max_num_seqs: options.MaxSeqs = 32,
    caching: options.Caching = True,
    num_draft_tokens: options.DraftTokens = 0,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the answers as JSON; - is standard output.")
    ] = None,
) -> None:
    from kvblocks.engine import SamplingParams

    check_outputs({"--json": json_path}, [file] if file is not None else [])
    texts = [*(prompts or []), *_lines(file)]
    if not texts:
        raise UsageError("there is no prompt: give one as an argument, or a file of them with --file")
    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, n=n, stop=tuple(stop or ())
    )
    settings = options.settings_of(
        kv_memory,
        num_blocks=num_blocks,
        block_size=block_size,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enable_caching=caching,
        num_draft_tokens=num_draft_tokens,
    )
    loaded, engine = options.start(model, settings)
    encode = loaded.tokenizer.encode
    ids = [encode(t) if raw else loaded.tokenizer.encode_chat([{"role": "user", "content": t}]) for t in texts]
    generations = engine.generate(ids, params)
    if json_path is not None:
        answers = [
            {
                "prompt": text,
                "prompt_tokens": len(generation.prompt_token_ids),
                "cached_tokens": generation.num_cached_tokens,
                "answers": [
                    {
                        "text": answer.text,
                        "token_ids": answer.output_token_ids,
                        "finish_reason": answer.finish_reason,
                        "time_to_first_token_s": (answer.first_token_s or 0) - answer.arrival_time_s,
                    }
                    for answer in generation.answers
                ],
            }
            for text, generation in zip(texts, generations, strict=True)
        ]
        write_json({"kvblocks": __version__, "model": loaded.name, "prompts": answers}, json_path)
    if json_path != "-":
        console = plain_console()
        for generation in generations:
            for answer in generation.answers:
                console.print(visible(answer.text.strip()))
        stats: Any = engine.stats
        plain_console(stderr=True).print(
            f"{stats.prompt_tokens:,} prompt tokens, {stats.cached_tokens:,} of them cached; "
            f"{stats.generated_tokens:,} tokens generated in {stats.steps:,} steps"
        )


def visible(text: str) -> str:
    """The text with control characters escaped; line ends stay."""
    return "\n".join(map(printable, text.split("\n")))


def _lines(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file {file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return [line for line in text.splitlines() if line.strip()]
