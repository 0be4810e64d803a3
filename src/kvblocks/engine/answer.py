"""A request of the engine: a prompt, its answers, and how far each has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kvblocks.engine.drafts import NGramDrafter
from kvblocks.engine.sampling import Sampler, SamplingParams
from kvblocks.engine.tokenizer import TextStream, Tokenizer
from kvblocks.manager import TokenRequest
from kvblocks.prefix import BlockHasher, ExtraKeys

FinishReason = Literal["stop", "length", "abort", "error"]


class Output(NamedTuple):
    """What is new of an answer after a step."""

    answer: Answer
    token_ids: Sequence[int]
    text: str
    finish_reason: FinishReason | None


class Answer(TokenRequest):
    """One answer to a prompt, as the scheduler runs it."""

    def __init__(
        self,
        generation: Generation,
        number: int,
        hasher: BlockHasher | None,
        extra_keys: ExtraKeys | None,
        tokenizer: Tokenizer | None,
        num_draft_tokens: int,
        arrival_time_s: float,
    ) -> None:
        name = generation.request_id if generation.params.n == 1 else f"{generation.request_id}.{number}"
        super().__init__(
            name, generation.prompt_token_ids, hasher, extra_keys=extra_keys, arrival_time_s=arrival_time_s
        )
        self.generation = generation
        self.number = number
        self.sampler = Sampler(generation.params, number)
        self.stream = None if tokenizer is None else TextStream(tokenizer, generation.params.stop)
        self.drafter = NGramDrafter() if num_draft_tokens else None
        self.finish_reason: FinishReason | None = None
        self.error = ""
        self.num_cached_tokens: int | None = None
        """Prompt tokens that the cache held when the request was admitted; None until then."""
        self.first_token_s: float | None = None
        self.finished_s: float | None = None
        self.num_accepted_drafts = 0

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def text(self) -> str:
        """The generated text."""
        return "" if self.stream is None else self.stream.text


@dataclass(eq=False, slots=True)
class Generation:
    """A prompt and its `params.n` answers."""

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    on_output: Callable[[Output], None] | None = None
    answers: list[Answer] = field(default_factory=list)
    waiting: list[Answer] = field(default_factory=list)
    """Answers that start when the first one has computed the prompt, whose blocks they then share."""

    @property
    def finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self.answers)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were cached before the request came: what its first answer found."""
        return self.answers[0].num_cached_tokens or 0
