"""Text completion: the model continues a text, which is shown as it grows.

agentrt run demos/techniques/text_completion.py --input "The capital of France is"
"""

from __future__ import annotations

from agentrt import Context, program


@program
async def complete(ctx: Context, text: str = "The capital of France is") -> str:
    context = await ctx.context(text)
    async for piece in context.generate(32):
        print(piece, end="", flush=True)
    print()
    return await context.text()
