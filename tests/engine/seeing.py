"""What tests ask a model that sees, and that has a LoRA adapter, on engines of theirs."""

from __future__ import annotations

import base64
import io
import random
from pathlib import Path
from typing import Any

from agentrt import Context, Runtime, program

TOKENS = 16


def seeing_flags(adapter: Path) -> tuple[str, ...]:
    """For an engine whose model takes two images, and has an ``adapter`` called tuned."""
    return (
        *("--dtype", "float32", "--max-model-len", "512"),
        *("--kv-cache-memory-bytes", str(64 << 20)),
        *("--limit-mm-per-prompt", '{"image": 2}'),
        *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={adapter}"),
    )


def image(seed: int) -> dict[str, Any]:
    """A part of a message: a picture of dots."""
    from PIL import Image

    file = io.BytesIO()
    Image.frombytes("RGB", (40, 30), random.Random(seed).randbytes(3600)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def asking(*images: dict[str, Any]) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": "What is it?"}, *images]
    return [{"role": "user", "content": parts}]


async def said(runtime: Runtime, *images: dict[str, Any], model: str | None = None) -> str:
    @program
    async def sees(ctx: Context) -> str:
        reply = await ctx.llm(asking(*images), max_tokens=TOKENS, ignore_eos=True, model=model)
        return reply.text

    text: str = await runtime.start(sees).wait()
    return text
