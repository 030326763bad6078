"""A causal language model of transformers: loads it, and computes the logits of added tokens.

The attention that a program chose is applied by masks, and by positions in the cache. With a mask
alone, each token would keep its position in the text, and in a long text positions would exceed the
model's context. Therefore, as in StreamingLLM, positions are counted within the cache. A token's
position in the cache changes when earlier tokens are dropped. So keys are cached without their
rotary embedding, and are rotated for each forward pass. An attention with chunks, and a model whose
positions cannot be moved (`CausalModel.moves`), use a mask alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrt.contexts.attention import Attention
from agentrt.errors import CallRejectedError, ModelLoadError
from agentrt.executors.transformers.cache import TextCache
from agentrt.executors.transformers.choosing import GrammarCompiler

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

# -- attention ---------------------------------------------------------------------------


ATTENTION = "agentrt"
"""The name under which transformers knows `_attend`."""


def register_attention() -> None:
    """Register `_attend` with transformers. Without ``places``, `_attend` does the same as
    transformers' own attention "sdpa".
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def seen(attention: Attention, queries: Tensor, keys: Tensor) -> Tensor:
    """Return `Attention.sees` for each pair of positions: a tensor (queries, keys) of booleans."""
    distance = queries[:, None] - keys[None, :]
    return (distance >= 0) & ((distance < attention.window) | kept(attention, keys)[None, :])


def kept(attention: Attention, keys: Tensor) -> Tensor:
    """Return `Attention.keeps` for each position of ``keys``: a tensor of booleans."""
    result = keys < attention.sinks
    if attention.chunk is not None:
        result = result | (keys % attention.chunk >= attention.chunk - attention.summary)
    return result


def _as_mask(visible: Tensor, dtype: Any) -> Tensor:
    """Return a mask (1, 1, queries, keys) that models add to attention scores: 0 where ``visible``
    is true, and the lowest number elsewhere.
    """
    import torch

    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)[None, None]


_Rotation = tuple["Tensor", "Tensor"]
"""The cosines and sines of the rotary embedding of positions."""


@dataclass(frozen=True, slots=True)
class _Places:
    """The positions of queries and keys in the cache, as rotations.

    The distance of a query from a key is their distance in the text, except for the first ``sinks``
    keys. The positions of these keys never change. ``to_sinks`` has the positions of queries
    relative to these keys; these positions stay below the length of the cache.
    """

    queries: _Rotation
    keys: _Rotation
    sinks: int = 0
    to_sinks: _Rotation | None = None


def _places_of_last(model: PreTrainedModel, count: int) -> _Places:
    """Return the positions of ``count`` cached keys and of one query, which is the last token."""
    import torch

    cos, sin = _rotation(model, torch.arange(count, device=model.device))
    return _Places((cos[:, -1:], sin[:, -1:]), (cos, sin))


def places(model: PreTrainedModel, attention: Attention, queries: Tensor, keys: Tensor) -> _Places:
    """Return the positions in the cache of ``queries`` and ``keys``, given their positions in the
    text.
    """
    is_sink = keys < attention.sinks
    others = keys[~is_sink]
    start = int(others[0]) if len(others) else 0
    at, sinks = _rotation(model, queries - start), int(is_sink.sum())
    if not sinks:
        return _Places(at, _rotation(model, keys - start))
    to_sinks = _rotation(model, queries.clamp(max=attention.sinks + attention.window - 1))
    return _Places(at, _rotation(model, (keys - start).where(~is_sink, keys)), sinks, to_sinks)


def _rotation(model: PreTrainedModel, at: Tensor) -> _Rotation:
    rotary = model.get_decoder().rotary_emb
    cos, sin = rotary(model.get_input_embeddings().weight[:1], at[None])
    # Some rotary embeddings also scale queries and keys. The model has done this already, when it
    # computed them for position 0.
    scale = getattr(rotary, "attention_scaling", 1.0)
    return cos / scale, sin / scale


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    places: _Places | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a layer.

    With ``places``, queries and keys must not be rotated yet.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.shape[2] == 1:
        attention_mask = None  # the cache has only keys that a single new token sees
    if places is not None:
        near = query
        query, key = _rotated(module, query, places.queries), _rotated(module, key, places.keys)
    if places is None or places.to_sinks is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return result
    near = _rotated(module, near, places.to_sinks)
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    to_sinks = _scores(near, key[:, :, : places.sinks])
    scores = torch.cat([to_sinks, _scores(query, key[:, :, places.sinks :])], dim=-1)
    scores = scores * (options.get("scaling") or query.shape[-1] ** -0.5) + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), None


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(2, 3)


def _rotated(module: Any, states: Tensor, rotation: _Rotation) -> Tensor:
    """Rotate states with the function of the layer's own module.

    Some models rotate only a part of each head; the rest is unchanged.
    """
    import torch

    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    size = rotation[0].shape[-1]
    part, rest = states[..., :size], states[..., size:]
    rotated: Tensor = rotate(part, part[:, :0], *rotation)[0]
    return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated


_TOLERANCE = {"float32": 1e-3}
"""For each dtype, the maximum difference between logits that are computed with and without moved
positions, as a share of the largest logit.
"""
_COARSE = 0.05
"""The maximum difference for all other dtypes."""


# -- the model ---------------------------------------------------------------------------


class CausalModel:
    """A model with its tokenizer. All methods must be called from the same thread.

    ``grammars`` compiles constraints. ``max_len`` is the model's context in tokens; None if it is
    not known. ``plain`` says that all layers attend to the whole text. ``moves`` says that the
    positions of cached tokens can be changed. A text whose tokens attend only to a window (see
    `agentrt.contexts.attention`) may then be longer than ``max_len``.
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
        self.grammars = GrammarCompiler(tokenizer, self.vocabulary, self.stops)
        layers = DynamicCache(config=model.config).layers
        self.plain = all(type(layer) is DynamicLayer for layer in layers)
        # These properties of a model search through its parameters, so they are read once.
        self.device, self._dtype = model.device, model.dtype
        self._zero = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=self._dtype, device=self.device)
        self._last_place: tuple[int, _Places | None] = 0, None
        self._keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.moves = self.plain and self._can_move()

    @classmethod
    def load(cls, folder: str, dtype: str | None = None) -> CausalModel:
        """Load a model from a folder or the hub onto the GPU, or without a GPU onto the CPU.

        ``dtype`` is by default the model's own on a GPU, and float32 on a CPU. Raises
        `ModelLoadError` if transformers cannot load the model.
        """
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        register_attention()
        on_gpu = torch.cuda.is_available()
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype or ("auto" if on_gpu else "float32")
            )
            model = model.eval().to("cuda" if on_gpu else "cpu")
        except Exception as error:  # damaged files and a full GPU cause errors of many types
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ModelLoadError(
                f"transformers cannot load model {folder!r}: {reason} "
                "(--model takes a folder or a hub name of a causal language model)"
            ) from error
        if model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(ATTENTION)
        return cls(model, tokenizer, folder)

    @property
    def stops(self) -> frozenset[int]:
        """The ids of the tokens that end an output."""
        ids = self._model.generation_config.eos_token_id
        ids = self.config.eos_token_id if ids is None else ids
        return frozenset([ids] if isinstance(ids, int) else ids or ())

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""
        return int(self.config.vocab_size)

    # -- texts -------------------------------------------------------------------------

    def start(self, attention: Attention | None = None) -> TextCache:
        """Return the cache of an empty text.

        Raises `CallRejectedError` for an attention that the model does not support.
        """
        from transformers import DynamicCache

        if attention is not None and not self.plain:
            raise CallRejectedError(
                f"model {self.name!r} does not support attention=, because some of its layers do "
                "not attend to the whole text; use a model whose layers all have full attention"
            )
        layers = DynamicCache() if self.plain else DynamicCache(config=self._model.config)
        return TextCache([], [], layers, attention)

    def longest(self, attention: Attention | None) -> int | None:
        """Return the maximum number of tokens of a text; None if there is no limit, or if the
        limit is not known.
        """
        if attention is None or not self._places_move(attention):
            return self.max_len
        cached = attention.sinks + attention.window
        return None if self.max_len is None or cached <= self.max_len else self.max_len

    def extend(self, cache: TextCache, ids: Sequence[int], keep: int = 1) -> Tensor:
        """Add ``ids`` to the text of ``cache``, and return the logits after the last ``keep``
        tokens.

        The result has the shape (keep, vocabulary), in float32. If the forward pass fails, the text
        of ``cache`` is empty afterwards, and ``cache`` must not be used again.
        """
        import torch

        before = len(cache.ids)
        tokens = torch.tensor([list(ids)], device=self.device)
        cache.ids += ids
        cache.positions += range(before, len(cache.ids))
        options = {} if cache.attention is None else self._seeing(cache.attention, before, cache)
        if self._keep:
            options["logits_to_keep"] = keep
        try:
            with torch.inference_mode():
                out = self._model(tokens, past_key_values=cache.layers, use_cache=True, **options)
        except BaseException:
            # Some layers may have cached the new tokens, and others not: leave an empty text.
            cache.ids, cache.positions = [], []
            raise
        if cache.attention is not None:
            cache.forget(before)
        logits: Tensor = out.logits[0, len(out.logits[0]) - keep :].float()
        return logits

    # -- an attention that a program chose ---------------------------------------------

    def _places_move(self, attention: Attention) -> bool:
        return self.moves and attention.chunk is None

    def _seeing(self, attention: Attention, before: int, cache: TextCache) -> dict[str, Any]:
        """Return the arguments with which the model lets the tokens from position ``before`` on
        attend only to the tokens that ``attention`` allows.
        """
        if len(cache.ids) - before == 1:
            return self._seeing_all(attention, before, len(cache.positions))
        import torch

        at = torch.tensor(cache.positions, device=self.device)
        queries = at[before - len(cache.ids) :]
        options = {"attention_mask": _as_mask(seen(attention, queries, at), self._dtype)}
        if not self._places_move(attention):
            return {**options, "position_ids": queries[None]}
        moved = places(self._model, attention, queries, at)
        return {**options, "position_ids": queries.new_zeros(1, len(queries)), "places": moved}

    def _seeing_all(self, attention: Attention, before: int, count: int) -> dict[str, Any]:
        """Return the arguments for a single token, which sees all ``count`` cached tokens."""
        import torch

        if not self._places_move(attention):
            at = torch.tensor([[before]], device=self.device)
            return {"attention_mask": self._no_mask, "position_ids": at}
        if count != self._last_place[0]:  # constant when the window is full
            self._last_place = count, _places_of_last(self._model, count)
        options = {"attention_mask": self._no_mask, "position_ids": self._zero}
        return {**options, "places": self._last_place[1]}

    def _can_move(self) -> bool:
        """Return whether the logits stay the same if `_attend` rotates queries and keys."""
        if self._model.config._attn_implementation != ATTENTION:
            return False
        ids = [n % self.vocabulary for n in range(8)]
        expected = self.extend(self.start(), ids, len(ids))
        self.moves, cache = True, self.start(Attention(len(ids)))
        try:
            moved = self.extend(cache, ids, len(ids))
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return False  # the model has no rotary embedding, or an unknown kind of it
        dtype = str(self._dtype).rpartition(".")[2]
        difference = (moved - expected).abs().max() / expected.abs().max()
        return float(difference) < _TOLERANCE.get(dtype, _COARSE)
