"""The attention that a program chose, for transformers' models: masks, and positions in the cache.

With a mask alone, each token would keep its position in the text, and in a long text positions
would exceed the model's context. Therefore, as in StreamingLLM, positions are counted within the
cache. A token's position in the cache changes when earlier tokens are dropped. So keys are cached
without their rotary embedding, and are rotated for each forward pass. An attention with chunks, and
a model whose positions cannot be moved (`CausalModel.moves`), use a mask alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrt.contexts.attention import Attention

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

NAME = "agentrt"
"""The name under which transformers knows `attend`."""


def register() -> None:
    """Register `attend` with transformers. Without ``places``, `attend` does the same as
    transformers' own attention "sdpa".
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


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


def as_mask(visible: Tensor, dtype: Any) -> Tensor:
    """Return a mask (1, 1, queries, keys) that models add to attention scores: 0 where ``visible``
    is true, and the lowest number elsewhere.
    """
    import torch

    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)[None, None]


Rotation = tuple["Tensor", "Tensor"]
"""The cosines and sines of the rotary embedding of positions."""


@dataclass(frozen=True, slots=True)
class Places:
    """The positions of queries and keys in the cache, as rotations.

    The distance of a query from a key is their distance in the text, except for the first ``sinks``
    keys. The positions of these keys never change. ``to_sinks`` has the positions of queries
    relative to these keys; these positions stay below the length of the cache.
    """

    queries: Rotation
    keys: Rotation
    sinks: int = 0
    to_sinks: Rotation | None = None


def places_of_last(model: PreTrainedModel, count: int) -> Places:
    """Return the positions of ``count`` cached keys and of one query, which is the last token."""
    import torch

    cos, sin = _rotation(model, torch.arange(count, device=model.device))
    return Places((cos[:, -1:], sin[:, -1:]), (cos, sin))


def places(model: PreTrainedModel, attention: Attention, queries: Tensor, keys: Tensor) -> Places:
    """Return the positions in the cache of ``queries`` and ``keys``, given their positions in the
    text.
    """
    is_sink = keys < attention.sinks
    others = keys[~is_sink]
    start = int(others[0]) if len(others) else 0
    at, sinks = _rotation(model, queries - start), int(is_sink.sum())
    if not sinks:
        return Places(at, _rotation(model, keys - start))
    to_sinks = _rotation(model, queries.clamp(max=attention.sinks + attention.window - 1))
    return Places(at, _rotation(model, (keys - start).where(~is_sink, keys)), sinks, to_sinks)


def _rotation(model: PreTrainedModel, at: Tensor) -> Rotation:
    rotary = model.get_decoder().rotary_emb
    cos, sin = rotary(model.get_input_embeddings().weight[:1], at[None])
    # Some rotary embeddings also scale queries and keys. The model has done this already, when it
    # computed them for position 0.
    scale = getattr(rotary, "attention_scaling", 1.0)
    return cos / scale, sin / scale


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    places: Places | None = None,
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


def _rotated(module: Any, states: Tensor, rotation: Rotation) -> Tensor:
    """Rotate states with the function of the layer's own module.

    Some models rotate only a part of each head; the rest is unchanged.
    """
    import torch

    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    size = rotation[0].shape[-1]
    part, rest = states[..., :size], states[..., size:]
    rotated: Tensor = rotate(part, part[:, :0], *rotation)[0]
    return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated
