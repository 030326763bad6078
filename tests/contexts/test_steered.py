"""Output that an automaton steers, token by token, against a model that likes low token ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field, replace

import pytest

from agentrt.contexts import automaton as automaton_module
from agentrt.contexts.automaton import END, Automaton
from agentrt.contexts.emitter import Piece
from agentrt.contexts.generation import SteeredPiece, constrained, steered
from agentrt.errors import CallRejectedError
from agentrt.request import CallReport, CallSpec, Reply
from agentrt.request.sampling import Sampling
from agentrt.request.tokens import CallTokens

EOS = 2


@dataclass
class Model:
    """Takes the lowest token that a call allows; of a grammar of one token, the last one."""

    calls: list[CallSpec] = field(default_factory=list)
    finish_reason: str = "length"

    async def emit(self, spec: CallSpec) -> AsyncGenerator[Piece, None]:
        self.calls.append(spec)
        assert spec.sampling is not None
        allowed = spec.sampling.allowed_token_ids
        token = min(allowed) if allowed else EOS
        report = CallReport(prompt_tokens=len(spec.prompt_token_ids or ()), steps=1)
        reply = Reply(
            "",
            self.finish_reason,
            token_ids=(token,),
            token_logprobs=(((token, -0.5),),),
            report=report,
            node=len(self.calls),
            run_id="run-1",
            tokens=(CallTokens(str(len(self.calls))),),
        )
        yield SteeredPiece("", (token,), None)
        yield SteeredPiece("", (), reply)

    async def read(self, ids: Sequence[int]) -> str:
        """Token 3 is half of a character."""
        return bytes(b"abc\xc3\xa9f"[token % 6] for token in ids).decode(errors="replace")


@dataclass
class Digits:
    """An even token and an odd one in turn, for ever; its states are lists."""

    ends_at: int = 1000
    start: list[int] = field(default_factory=list)

    def allowed(self, state: list[int]) -> Collection[int]:
        if len(state) >= self.ends_at:
            return [END, 9]
        return (30, 41) if len(state) % 2 else (30,)

    def advance(self, state: list[int], token: int) -> list[int]:
        return [*state, token]


async def run(
    automaton: Automaton, spec: CallSpec, model: Model
) -> tuple[list[tuple[str, tuple[int, ...]]], Reply]:
    pieces = [piece async for piece in steered(model.emit, model.read, automaton, spec)]
    last = pieces[-1].reply
    assert last is not None
    assert [piece.reply for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    return [(piece.text, piece.token_ids) for piece in pieces], last


SPEC = CallSpec(
    prompt_token_ids=(7, 8), max_tokens=5, seed=100, sampling=Sampling(top_p=0.5, logprobs=0)
)


async def test_forced_tokens_cost_no_call_and_each_choice_one() -> None:
    model = Model()
    pieces, reply = await run(Digits(), SPEC, model)
    assert reply.token_ids == (30, 30, 30, 30, 30)
    assert reply.finish_reason == "length"
    assert [spec.prompt_token_ids for spec in model.calls] == [(7, 8, 30), (7, 8, 30, 30, 30)]
    assert [spec.seed for spec in model.calls] == [101, 103]
    for spec in model.calls:
        assert spec.max_tokens == 1
        assert spec.sampling == Sampling(top_p=0.5, logprobs=0, allowed_token_ids=(30, 41))
    # What was forced was certain.
    assert [place[0][1] for place in reply.token_logprobs] == [0.0, -0.5, 0.0, -0.5, 0.0]
    assert (reply.report.steps, reply.report.prompt_tokens) == (2, 3 + 5)
    assert (reply.run_id, reply.node, [each.key for each in reply.tokens]) == (
        "run-1",
        2,
        ["1", "2"],
    )
    assert [ids for _, ids in pieces] == [(30,)] * 5 + [()]


async def test_the_model_may_end_where_the_automaton_lets_it() -> None:
    model = Model()
    _, reply = await run(Digits(ends_at=1), SPEC, model)
    assert reply.token_ids == (30,)  # the token that ended it is left out
    assert reply.finish_reason == "stop"
    (call,) = model.calls
    assert call.sampling is not None
    assert call.sampling.constraint is not None
    assert call.sampling.constraint.value == 'root ::= Token(9) | ""'


async def test_nothing_is_asked_where_all_is_forced() -> None:
    model = Model()
    _, reply = await run(Digits(), replace(SPEC, max_tokens=1), model)
    assert (reply.token_ids, reply.finish_reason, model.calls) == ((30,), "length", [])
    assert reply.report == CallReport()


@dataclass(frozen=True)
class Long:
    """A choice of two tokens ``length`` times. ``looked`` has each state that was looked up."""

    length: int
    looked: list[int] = field(default_factory=list, compare=False)
    start: int = 0

    def allowed(self, state: int) -> Collection[int]:
        self.looked.append(state)
        return (30, 41) if state < self.length else ()

    def advance(self, state: int, token: int) -> int:
        return state + 1


async def test_an_automaton_with_many_states_is_not_explored_at_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(automaton_module, "MOST_STATES", 50)
    automaton, model = Long(100_000), Model()
    _, reply = await run(automaton, replace(SPEC, max_tokens=128), model)
    assert reply.token_ids == (30,) * 128
    explored, at_each_token = 10 * 51, 5 * 128
    assert len(automaton.looked) < explored + at_each_token


async def test_what_is_left_of_an_automaton_becomes_a_grammar_when_it_has_few_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(automaton_module, "MOST_STATES", 50)
    model = Model()
    await run(Long(150), replace(SPEC, max_tokens=300), model)
    grammars = [spec.sampling.constraint is not None for spec in model.calls if spec.sampling]
    assert grammars == [False] * 128 + [True]


@dataclass
class Text(Digits):
    """Writes ``é``, whose bytes are two tokens, between two other letters."""

    def allowed(self, state: list[int]) -> Collection[int]:
        return {0: (0, 6), 1: (3, 9), 2: (4, 10), 3: (5, 11)}.get(len(state), ())


async def test_pieces_are_whole_characters_and_make_up_the_text() -> None:
    pieces, reply = await run(Text(), SPEC, Model())
    assert [text for text, _ in pieces] == ["a", "", "é", "f", ""]
    assert reply.text == "aéf"


async def test_a_grammar_that_the_engine_gives_up_is_refused() -> None:
    with pytest.raises(CallRejectedError, match="could not follow an automaton"):
        await run(Digits(), SPEC, Model(finish_reason="error"))


async def test_logprobs_are_there_only_where_they_were_asked_for() -> None:
    _, reply = await run(Digits(), replace(SPEC, sampling=None), Model())
    assert reply.token_logprobs == ()


@pytest.mark.parametrize(("reason", "kept"), [("stop", (5, 6)), ("length", (5, 6, EOS))])
async def test_the_token_that_ends_a_grammar_is_left_out(reason: str, kept: Sequence[int]) -> None:
    logprobs = tuple(((token, -0.5),) for token in (5, 6, EOS))

    async def emit() -> AsyncGenerator[Piece, None]:
        yield SteeredPiece("a", (5,))
        reply = Reply("ab", reason, token_ids=(5, 6, EOS), token_logprobs=logprobs)
        yield SteeredPiece("b", (6, EOS), reply)

    pieces = [piece async for piece in constrained(emit())]
    assert [token for piece in pieces for token in piece.token_ids] == list(kept)
    reply = pieces[-1].reply
    assert reply is not None
    assert reply.token_ids == kept
    assert reply.token_logprobs == logprobs[: len(kept)]
    assert reply.text == "ab"


async def test_a_constraint_that_the_engine_gives_up_is_refused() -> None:
    async def emit() -> AsyncGenerator[Piece, None]:
        yield SteeredPiece("", (), Reply("", "error"))

    with pytest.raises(CallRejectedError, match="could not follow the constraint"):
        [piece async for piece in constrained(emit())]
