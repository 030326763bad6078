"""Chats after ShareGPT: a few turns, many in some; short prompts and long answers.

Published (Agentix, §6.1, Fig. 11): 6.66 calls per program, at most 80, long-tailed; 277
output and 256 prompt tokens per call. We read the 256 as what the human adds in a turn:
the prompt of a turn is the whole chat before it and that. No context limit cuts a chat off:
one prompt in a hundred is longer than 34,000 tokens.
"""

from __future__ import annotations

from random import Random

from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.sizes import Gaps, Sizes
from agentrt.lab.workloads.sketch import Sketch

TURNS = Sizes(mean=6.66, spread=1.1, high=80)
ANSWER = Sizes(mean=277, spread=0.8, high=2048)
QUESTION = Sizes(mean=256, spread=1.0, high=2048)


def program(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """One chat: a chain of calls, each extending the one before it."""
    turns = TURNS.draw(rng)
    sketch = Sketch(rng)
    last: int | None = None
    for _ in range(turns):
        first = last is None
        last = sketch.call(
            "turn",
            ANSWER,
            QUESTION,
            after=() if last is None else (last,),
            extends=last,
            gap_s=0.0 if first else gaps.human(rng),
            human=True,
        )
    return sketch.shape(program_id, "chat")
