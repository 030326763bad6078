"""ReAct agents after BFCL v3: think, call a tool, read its result, think again.

Published (Agentix, §6.1, Fig. 11): 10.75 calls per program, at most 70, less long-tailed
than chats; 735.06 prompt and 34.14 output tokens per call. We read the 735 as the whole
prompt of a call, since the paper puts it down to the system prompt and the tools'
signatures: those, the task, and the steps so far.
"""

from __future__ import annotations

from random import Random

from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.sizes import Gaps, Sizes
from agentrt.lab.workloads.sketch import Sketch

STEPS = Sizes(mean=10.75, spread=0.65, high=70)
THOUGHT = Sizes(mean=34.14, spread=0.6, high=512)
PROMPT_MEAN = 735.06
SYSTEM_TOKENS = 320
"""Ours: instructions and the signatures of the tools."""
TASK = Sizes(mean=45, spread=0.5, high=400)

_STEPS_BEFORE = (STEPS.square() / STEPS.mean - 1) / 2
"""How many steps lie before a call, averaged over calls: E[n (n - 1) / 2] / E[n]."""
RESULT = Sizes(
    mean=(PROMPT_MEAN - SYSTEM_TOKENS - TASK.mean) / _STEPS_BEFORE - THOUGHT.mean,
    spread=0.8,
    high=1024,
)
"""A tool's result: what must come with each step for prompts to have the published mean."""


def program(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """One ReAct agent: a chain with a tool's time between two calls."""
    steps = STEPS.draw(rng)
    sketch = Sketch(rng, system_tokens=SYSTEM_TOKENS)
    last = sketch.call("think", THOUGHT, TASK)
    for _ in range(steps - 1):
        last = sketch.call(
            "think", THOUGHT, RESULT, after=(last,), extends=last, gap_s=gaps.tool(rng)
        )
    return sketch.shape(program_id, "react")
