"""Techniques with attention that a program chooses, and plain code for transformers that does the
same.
"""

from __future__ import annotations

from typing import Any, cast

from agentrt.contexts import Attention
from benchmarks.techniques.bodies import Body
from benchmarks.techniques.table import Technique
from benchmarks.techniques.threads import OurThread, Thread

_TOKENS = 64
_ATTENTION = {
    "attention sink": Attention(124, sinks=4),
    "windowed attention": Attention(128),
    "hierarchical attention": Attention(96, sinks=4, chunk=32),
}


class PlainModel:
    """A transformers model in plain code. Its cache keeps all keys, and a mask hides the keys that
    a token must not see.
    """

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.forwards = self.tokens = 0
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()

    def write(self, text: str, attention: Attention) -> list[int]:
        """Generate the tokens that follow a text, greedily."""
        import torch
        from transformers import DynamicCache

        new, wrote, cache = self.tokenizer(text)["input_ids"], list[int](), DynamicCache()
        with torch.inference_mode():
            while len(wrote) < _TOKENS:
                first = cache.get_seq_length()
                mask = _mask(attention, first, first + len(new))
                made = self._model(
                    torch.tensor([new]),
                    attention_mask=mask,
                    past_key_values=cache,
                    logits_to_keep=1,
                )
                self.forwards, self.tokens = self.forwards + 1, self.tokens + len(new)
                new = [int(made.logits[0, -1].argmax())]
                wrote += new
        return wrote

    async def counted(self) -> tuple[float, float]:
        """Return the number of forward passes so far, and the number of tokens computed in them."""
        return self.forwards, self.tokens


class PlainThread:
    """A text that a `PlainModel` continues."""

    def __init__(self, model: PlainModel, text: str) -> None:
        self.model, self.text = model, text
        self.wrote: list[int] = []


def _mask(attention: Attention, first: int, end: int) -> Any:
    """Return the mask for the tokens from ``first`` to ``end`` - 1: which keys of the first ``end``
    tokens each of these tokens sees.
    """
    import torch

    keys, queries = torch.arange(end), torch.arange(first, end)[:, None]
    keeps = torch.tensor([attention.keeps(key) for key in range(end)])
    seen = (keys <= queries) & ((queries - keys < attention.window) | keeps)
    return torch.where(seen, 0.0, float("-inf"))[None, None]


def _technique(attention: Attention) -> Technique:
    async def ours(thread: Thread) -> None:
        context = cast(OurThread, thread).context
        await context.generate(_TOKENS, attention=attention, ignore_eos=True)

    async def theirs(thread: Thread) -> None:
        plain = cast(PlainThread, thread)
        plain.wrote = plain.model.write(plain.text, attention)

    bodies: tuple[Body, Body] = ours, theirs
    return Technique(*bodies)


ATTENTIONS = {name: _technique(attention) for name, attention in _ATTENTION.items()}
