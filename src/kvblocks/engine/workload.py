"""A workload of real text: chats that share a system prompt and ask about the same few documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvblocks.engine.answer import Generation
from kvblocks.engine.capacity import EngineSettings
from kvblocks.engine.engine import Engine
from kvblocks.engine.load import LoadedModel
from kvblocks.engine.sampling import SamplingParams
from kvblocks.observe import REASONS, MissReasons

SYSTEM = (
    "You are the assistant of a small harbour town. Answer questions of inhabitants and visitors about the documents "
    "that they paste into the chat. Keep to what the document says, answer in one or two short sentences, and say so "
    "when the document does not tell. Do not invent names, times or prices. Be friendly, but do not chat."
)
DOCUMENTS = {
    "ferry": (
        "Ferry timetable and rules. The ferry to the island leaves the north quay every day at 6:30, 9:00, 12:15, "
        "15:45 and 19:00, on Sundays not at 6:30. The crossing takes 35 minutes in calm weather. The last boat back "
        "leaves the island at 20:10. A single ticket costs 7 euros, a return ticket 12 euros; children under six "
        "travel free, and dogs need a ticket of 2 euros and a lead. Bicycles are carried for 3 euros as long as there "
        "is room on the lower deck, which holds twenty of them; tandems and trailers count as two. Cars are not "
        "carried. When the wind is above eight on the Beaufort scale the ferry does not sail, and tickets can be used "
        "on another day or are paid back at the harbour office until seven days later. Groups of more than ten people "
        "should write to the office two days ahead, so that a second boat can be made ready. Luggage that does not "
        "fit under a seat goes to the storage room beside the bridge. Food may be eaten on the upper deck only. The "
        "crew can be asked for a wheelchair ramp at both quays, and for life jackets in children's sizes."
    ),
    "library": (
        "Rules of the town library. The library is open from Tuesday to Saturday, 10:00 to 18:00, and on Thursdays "
        "until 20:00. Membership is free for everyone who lives in the town and costs 15 euros a year for others. A "
        "member may borrow eight books, three films and one board game at once. Books are lent for four weeks, films "
        "and games for one; each can be renewed twice unless somebody else waits for it. What comes back late costs "
        "20 cents a day, at most 5 euros for a book. A lost card is replaced for 3 euros. The reading room on the "
        "first floor is quiet; telephones are switched off there, and nothing is eaten or drunk but water. The two "
        "small rooms beside it can be reserved by groups of up to six people, for two hours a day, at the front desk "
        "or by telephone. Printers take black-and-white pages for 10 cents and colour for 30. Every first Saturday of "
        "a month old books are sold in the yard for one euro each. Children's hour is on Wednesday at 15:00, without "
        "registration; parents may stay or have coffee in the hall."
    ),
    "market": (
        "Notes for stallholders of the Friday market. The market is held on the square before the old customs house "
        "from 7:30 to 13:00, from April to October also on Tuesdays. Stalls are set up from 6:00 on; by 7:15 all cars "
        "must have left the square. A place of three metres costs 18 euros a day, electricity 4 euros more, and is "
        "paid to the market warden before 10:00. Regular stallholders keep their place until 7:00; after that the "
        "warden gives it to others for the day. Fish, meat and cheese need a cooled counter, and a sheet with the "
        "temperatures of the day that the inspector may ask for at any time. Music is allowed from 9:00, without "
        "loudspeakers. Paper and glass go into the containers behind the chapel, everything else is taken home. Dogs "
        "stay away from food stalls. In a storm warning the market moves into the fish hall, where places are two "
        "metres wide. Who wants to sell for the first time shows a trade licence and a proof of insurance to the town "
        "office, second floor, on a Monday or Wednesday morning, and gets a place on trial for four weeks."
    ),
}
QUESTIONS = {
    "ferry": (
        "When does the first boat leave on a Sunday?",
        "What does a return ticket cost?",
        "Can I take my bicycle?",
        "What happens when there is a storm?",
        "How long is the crossing?",
        "May I bring a dog?",
    ),
    "library": (
        "How many books may I borrow?",
        "Is it open on Monday?",
        "What does a late book cost?",
        "Can I reserve a room?",
        "When is the children's hour?",
        "How much is a colour page?",
    ),
    "market": (
        "When does the market begin?",
        "How much is a place?",
        "May I play music?",
        "Where does the market go in a storm?",
        "What does a new seller need?",
        "Where do I put my paper?",
    ),
}


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One turn of a chat, as it was served."""

    chat: int
    turn: int
    document: str
    question: str
    answer: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float


@dataclass(slots=True)
class WorkloadRun:
    """The workload, served once."""

    caching: bool
    num_blocks: int
    block_size: int
    duration_s: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)
    evicted_blocks: int = 0
    missed_tokens: dict[str, int] = field(default_factory=dict)
    """Tokens of admitted requests that the cache did not hold, by reason."""
    requests: list[ServedRequest] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def cached_tokens(self) -> int:
        return sum(request.cached_tokens for request in self.requests)

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def ttft_s(self, share: float) -> float:
        """The time to first token that so many of the requests do not exceed."""
        times = sorted(request.ttft_s for request in self.requests)
        return times[min(len(times) - 1, int(share * len(times)))]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as data."""
        totals = {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "hit_rate": self.hit_rate,
            "reasons": {reason: words for reason, words in REASONS.items() if reason in self.missed_tokens},
            "ttft_s": {"p50": self.ttft_s(0.5), "p90": self.ttft_s(0.9)},
        }
        return {**asdict(self), **totals}


class _Chat:
    """A chat in progress."""

    def __init__(self, number: int, turns: int) -> None:
        self.number = number
        self.document = list(DOCUMENTS)[number % len(DOCUMENTS)]
        asked = QUESTIONS[self.document]
        first = number // len(DOCUMENTS)
        self.questions = [asked[(first + turn) % len(asked)] for turn in range(turns)]
        self.messages = [{"role": "system", "content": SYSTEM}]
        self.turn = 0

    def ask(self) -> list[dict[str, str]]:
        """The messages of the next turn."""
        question = self.questions[self.turn]
        before = f"{DOCUMENTS[self.document]}\n\n" if self.turn == 0 else ""
        self.messages.append({"role": "user", "content": before + question})
        return self.messages

    def hear(self, generation: Generation) -> ServedRequest:
        """Take the answer."""
        (answer,) = generation.answers
        self.messages.append({"role": "assistant", "content": answer.text})
        self.turn += 1
        return ServedRequest(
            chat=self.number + 1,
            turn=self.turn,
            document=self.document,
            question=self.questions[self.turn - 1],
            answer=answer.text,
            prompt_tokens=answer.num_prompt_tokens,
            cached_tokens=generation.num_cached_tokens,
            output_tokens=len(answer.output_token_ids),
            ttft_s=(answer.first_token_s or 0) - answer.arrival_time_s,
        )


def serve_chats(
    model: LoadedModel,
    settings: EngineSettings,
    *,
    chats: int,
    turns: int,
    at_once: int,
    max_tokens: int,
    on_served: Callable[[ServedRequest], None] | None = None,
) -> WorkloadRun:
    """Serve the chats, `at_once` of them together; each sends its next turn as soon as it is answered."""
    reasons = MissReasons()
    engine = Engine(model.shape, model.weights, model.tokenizer, settings, observers=[reasons])
    run = WorkloadRun(settings.enable_caching, engine.manager.block_pool.num_blocks, settings.block_size)
    params = SamplingParams(max_tokens=max_tokens)
    waiting = [_Chat(number, turns) for number in range(chats)]
    active: list[tuple[_Chat, Generation]] = []
    started = engine.clock()
    while waiting or active:
        while waiting and len(active) < at_once:
            chat = waiting.pop(0)
            active.append((chat, engine.add(model.tokenizer.encode_chat(chat.ask()), params)))
        engine.step()
        for at, (chat, generation) in enumerate(active):
            if generation.finished:
                run.requests.append(chat.hear(generation))
                if on_served is not None:
                    on_served(run.requests[-1])
                if chat.turn < turns:
                    active[at] = (chat, engine.add(model.tokenizer.encode_chat(chat.ask()), params))
        active = [entry for entry in active if not entry[1].finished]
    run.duration_s = engine.clock() - started
    run.stats = asdict(engine.stats)
    run.missed_tokens = {str(reason): tokens for reason, tokens in reasons.totals.reasons.items() if tokens}
    run.evicted_blocks = engine.cache_stats.stats.evicted_hashes
    return run


def pairs(on: WorkloadRun, off: WorkloadRun) -> Sequence[tuple[ServedRequest, ServedRequest]]:
    """The same request of both runs, in the order of chats and turns."""

    def order(request: ServedRequest) -> tuple[int, int]:
        return request.chat, request.turn

    return list(zip(sorted(on.requests, key=order), sorted(off.requests, key=order), strict=True))
