"""A causal language model of transformers: loaded, and asked for the logits of more tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentrt.contexts.attention import Attention
from agentrt.errors import CallRejectedError, ModelLoadError
from agentrt.executors.transformers.attention import (
    NAME,
    Places,
    as_mask,
    place_of_one,
    places,
    register,
    seen,
)
from agentrt.executors.transformers.cache import TextCache
from agentrt.executors.transformers.choosing import Grammars

if TYPE_CHECKING:
    from torch import Tensor

_TOLERANCE = {"float32": 1e-3}
"""How far logits may be apart, of their largest, that are computed in two ways."""
_COARSE = 0.05


class CausalModel:
    """A model with its ``tokenizer``, and ``grammars`` of its tokens. It computes on ``device``.
    ``max_len`` counts the tokens of a text.

    With ``moves`` the positions of cached tokens can be moved, so that texts with a bounded
    attention may be of any length. All methods belong to one thread.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        import torch
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        self.name = name
        self.tokenizer = tokenizer
        self.config = model.config.get_text_config(decoder=True)
        self.max_len: int | None = getattr(self.config, "max_position_embeddings", None)
        self._model = model
        self.grammars = Grammars(tokenizer, self.vocabulary, self.stops)
        layers = DynamicCache(config=model.config).layers
        self.plain = all(type(layer) is DynamicLayer for layer in layers)
        # Asked for them, a model looks through its parameters each time.
        self.device, self._dtype = model.device, model.dtype
        self._zero = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=self._dtype, device=self.device)
        self._last_place: tuple[int, Places | None] = 0, None
        self._keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.moves = self.plain and self._can_move()

    @classmethod
    def load(cls, folder: str, dtype: str | None = None) -> CausalModel:
        """Load a folder or a hub's model on the GPU, or without one in float32 on the CPU.

        Raises `ModelLoadError`.
        """
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        register()
        on_gpu = torch.cuda.is_available()
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype or ("auto" if on_gpu else "float32")
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ModelLoadError(
                f"transformers cannot load model {folder!r}: {str(error).partition(chr(10))[0]} "
                "(give --model a folder or a hub name of a causal language model)"
            ) from error
        if model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(NAME)
        return cls(model.eval().to("cuda" if on_gpu else "cpu"), tokenizer, folder)

    @property
    def stops(self) -> frozenset[int]:
        """The tokens that end an output."""
        ids = self._model.generation_config.eos_token_id
        ids = self.config.eos_token_id if ids is None else ids
        return frozenset([ids] if isinstance(ids, int) else ids or ())

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return int(self.config.vocab_size)

    # -- texts -------------------------------------------------------------------------

    def start(self, attention: Attention | None = None) -> TextCache:
        """The cache of an empty text. Raises `CallRejectedError` for an attention that the model
        cannot have.
        """
        from transformers import DynamicCache

        if attention is not None and not self.plain:
            raise CallRejectedError(
                f"model {self.name!r} takes no attention=: some of its layers see less than the "
                "whole text by themselves; choose a model all of whose layers attend alike"
            )
        layers = DynamicCache() if self.plain else DynamicCache(config=self._model.config)
        return TextCache([], [], layers, attention)

    def longest(self, attention: Attention | None) -> int | None:
        """How many tokens a text may have; None for any number."""
        if attention is None or not self._places_move(attention):
            return self.max_len
        held = attention.sinks + attention.window
        return None if self.max_len is None or held <= self.max_len else self.max_len

    def extend(self, cache: TextCache, ids: Sequence[int], keep: int = 1) -> Tensor:
        """Add ``ids`` to the text, and return the logits after each of the last ``keep``."""
        import torch

        before = len(cache.ids)
        tokens = torch.tensor([list(ids)], device=self.device)
        cache.ids += ids
        cache.positions += range(before, len(cache.ids))
        options = {} if cache.attention is None else self._seeing(cache.attention, before, cache)
        if self._keep:
            options["logits_to_keep"] = keep
        with torch.inference_mode():
            out = self._model(tokens, past_key_values=cache.layers, use_cache=True, **options)
        if cache.attention is not None:
            cache.forget(before)
        logits: Tensor = out.logits[0, len(out.logits[0]) - keep :].float()
        return logits

    # -- attention that a program chose ------------------------------------------------

    def _places_move(self, attention: Attention) -> bool:
        return self.moves and attention.chunk is None

    def _seeing(self, attention: Attention, before: int, cache: TextCache) -> dict[str, Any]:
        """The model's arguments for the tokens after the first ``before``."""
        if len(cache.ids) - before == 1:
            return self._seeing_all(attention, before, len(cache.positions))
        import torch

        at = torch.tensor(cache.positions, device=self.device)
        queries = at[before - len(cache.ids) :]
        options = {"attention_mask": as_mask(seen(attention, queries, at), self._dtype)}
        if not self._places_move(attention):
            return {**options, "position_ids": queries[None]}
        moved = places(self._model, attention, queries, at)
        return {**options, "position_ids": queries.new_zeros(1, len(queries)), "places": moved}

    def _seeing_all(self, attention: Attention, before: int, count: int) -> dict[str, Any]:
        """The same for one token: it sees all ``count`` that are cached."""
        import torch

        if not self._places_move(attention):
            at = torch.tensor([[before]], device=self.device)
            return {"attention_mask": self._no_mask, "position_ids": at}
        if count != self._last_place[0]:  # it stays the same once the text fills its window
            self._last_place = count, place_of_one(self._model, count)
        options = {"attention_mask": self._no_mask, "position_ids": self._zero}
        return {**options, "places": self._last_place[1]}

    def _can_move(self) -> bool:
        """Whether the model gives the same logits if we rotate its queries and keys."""
        if self._model.config._attn_implementation != NAME:
            return False
        ids = [n % self.vocabulary for n in range(8)]
        expected = self.extend(self.start(), ids, len(ids))
        self.moves, cache = True, self.start(Attention(len(ids)))
        try:
            found = self.extend(cache, ids, len(ids))
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return False  # no rotation, or none like those that we know
        dtype = str(self._dtype).rpartition(".")[2]
        apart = (found - expected).abs().max() / expected.abs().max()
        return float(apart) < _TOLERANCE.get(dtype, _COARSE)
