"""EBNF decoding: whatever the model writes is a sentence of a grammar.

    agentrt run demos/techniques/ebnf.py --input "Four twos that make ten: "

vLLM's structured outputs follow the grammar inside the engine. (XGrammar, Dong et al., 2024,
https://arxiv.org/abs/2411.15100)
"""

from __future__ import annotations

from agentrt import Context, program
from agentrt.contexts import TokenContext, ebnf

FORMULA = r"""
root ::= sum
sum ::= product (sign product){0,2}
sign ::= "+" | "-"
product ::= number ("*" number){0,2} | "(" number sign number ")"
number ::= [1-9] [0-9]?
"""


async def formula(context: TokenContext, temperature: float = 0.0) -> str:
    """Return the formula that the model writes. It ends, because no rule repeats without end."""
    done = await context.generate(64, constrain=ebnf(FORMULA), temperature=temperature)
    return done.text


@program
async def calculate(ctx: Context, text: str = "Four twos that make ten: ") -> str:
    return await formula(await ctx.context(text))
