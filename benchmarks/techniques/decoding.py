"""Decoding techniques, as functions of a thread. If a client needs another method, there is a
second function for the client.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import cast

from benchmarks.techniques.threads import DELTA, GREEN, HttpThread, OurThread, Thread

_FORMULA = r"""
root ::= number (sign number){11}
sign ::= "+" | "-" | "*"
number ::= [1-9] [0-9] [0-9]
"""
_TOKENS = 48
_AGAIN = "one two three four five six seven, "


async def ebnf(thread: Thread) -> None:
    """Write a formula that a grammar constrains."""
    async for _ in thread.pieces(64, _FORMULA):
        pass


async def beam_search(thread: Thread) -> None:
    """Search with three beams of twelve tokens."""
    await thread.ids()
    beams = [(0.0, thread)]
    for _ in range(12):
        likely = await asyncio.gather(*(beam.likeliest(3) for _, beam in beams))
        longer = [
            (worth + logprob, beam, token)
            for (worth, beam), nexts in zip(beams, likely, strict=True)
            for token, logprob in nexts
        ]
        beams = []
        for worth, beam, token in sorted(longer, key=lambda each: -each[0])[:3]:
            branch = beam.fork()
            await branch.push([token])
            beams.append((worth, branch))


async def servers_beam_search(thread: Thread) -> None:
    """Use vLLM's own beam search, which vLLM's server computes token by token."""
    own = cast(HttpThread, thread)
    await own.client.ask(await own.ids(), 12, n=3, use_beam_search=True)


async def watermark(thread: Thread) -> None:
    """Write a text with a watermark: a logits processor favours the tokens with even ids."""
    await cast(OurThread, thread).write(
        32, temperature=1.0, seed=1, logits={GREEN: {"delta": DELTA}}
    )


async def clients_watermark(thread: Thread) -> None:
    """Write a marked text as a client: one request for each token, which is chosen from the twenty
    likeliest tokens.
    """
    drawn = random.Random(1)
    for _ in range(32):
        likely = await thread.likeliest(20)
        weights = [math.exp(value + DELTA * (token % 2 == 0)) for token, value in likely]
        [(token, _)] = drawn.choices(likely, weights)
        await thread.push([token])


async def output_validation(thread: Thread) -> None:
    """Twice, choose the longest of four answers, and say what is wrong with it. Then write an
    answer.
    """
    for _ in range(2):
        answers: Sequence[tuple[str, Thread]] = await thread.answers(4, 24)
        _, thread = max(answers, key=lambda each: len(each[0]))
        await thread.fill("\nThat is wrong: there is no year in it. Again:")
    await thread.write(24)


async def speculation(thread: Thread) -> None:
    """Draft the tokens that followed an earlier occurrence of the last two tokens, and let the
    model check the draft.
    """
    await thread.fill(_AGAIN * 4)
    end = len(await thread.ids()) + _TOKENS
    while (left := end - len(await thread.ids())) > 0:
        draft = _followed(await thread.ids(), most=10)[: left - 1]
        if draft:
            wanted = await thread.corrected(draft)
            await thread.push(wanted[: _right(draft, wanted) + 1])
        else:
            [(token, _)] = await thread.likeliest(1)
            await thread.push([token])


async def jacobi(thread: Thread) -> None:
    """Guess eight tokens at once, and correct them until they no longer change."""
    await thread.fill(_AGAIN * 4)
    ids = await thread.ids()
    end, guess = len(ids) + _TOKENS, list[int]()
    while (left := end - len(await thread.ids())) > 0:
        guess = (guess + (guess[-1:] or [ids[-1]]) * 8)[: min(8, left)]
        wanted = (await thread.corrected(guess))[: len(guess)]
        sure = min(_right(guess, wanted) + 1, len(wanted))
        await thread.push(wanted[:sure])
        guess = wanted[sure:]


async def plain_decoding(thread: Thread) -> None:
    """Write as many tokens as `speculation` and `jacobi`, with ordinary decoding in one request."""
    await thread.fill(_AGAIN * 4)
    await thread.write(_TOKENS)


def _right(draft: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the number of tokens at the beginning of a draft that equal the tokens that the model
    would write.
    """
    return next((i for i, token in enumerate(draft) if token != wanted[i]), len(draft))


def _followed(ids: Sequence[int], most: int) -> list[int]:
    last = tuple(ids[-2:])
    places = range(len(ids) - 3, -1, -1)
    at = next((at for at in places if tuple(ids[at : at + 2]) == last), None)
    return [] if at is None else list(ids[at + 2 : at + 2 + most])
