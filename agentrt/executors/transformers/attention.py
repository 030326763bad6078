"""Attention that a program chose, as transformers' models take it: masks, and moved positions.

A mask alone would leave each token at its place in the text, beyond what the model knows once the
text is long. StreamingLLM counts places within the cache instead. So keys are cached as they are
before their rotation, and are rotated here to where they stand for the token that looks at them.
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
"""Our attention function among those of transformers."""


def register() -> None:
    """Let transformers' models use `attend`; without places of ours it is its "sdpa"."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def seen(attention: Attention, queries: Tensor, keys: Tensor) -> Tensor:
    """`Attention.sees` of each query and key, by their positions in the text."""
    distance = queries[:, None] - keys[None, :]
    return (distance >= 0) & ((distance < attention.window) | kept(attention, keys)[None, :])


def kept(attention: Attention, keys: Tensor) -> Tensor:
    """`Attention.keeps` of each key."""
    found = keys < attention.sinks
    if attention.chunk is not None:
        found = found | (keys % attention.chunk >= attention.chunk - attention.summary)
    return found


def as_mask(visible: Tensor, dtype: Any) -> Tensor:
    """What models add to their attention's scores."""
    import torch

    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)[None, None]


Turned = tuple["Tensor", "Tensor"]
"""The cosines and sines of positions' rotation."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where queries and keys stand in the cache, as cosines and sines of their rotation.

    Between a key and a query there are as many tokens as in the text. But the first ``sinks`` keys
    stand still, and a query is never further from them than the cache is long: ``to_sinks``.
    """

    queries: Turned
    keys: Turned
    sinks: int = 0
    to_sinks: Turned | None = None


def place_of_one(model: PreTrainedModel, count: int) -> Places:
    """The places of ``count`` keys and of one query, the last of them: those in the cache."""
    import torch

    cos, sin = _turned(model, torch.arange(count, device=model.device))
    return Places((cos[:, -1:], sin[:, -1:]), (cos, sin))


def places(model: PreTrainedModel, attention: Attention, queries: Tensor, keys: Tensor) -> Places:
    """The places of ``queries`` and ``keys``, which are positions in the text."""
    is_sink = keys < attention.sinks
    others = keys[~is_sink]
    start = int(others[0]) if len(others) else 0
    at, found = _turned(model, queries - start), int(is_sink.sum())
    if not found:
        return Places(at, _turned(model, keys - start))
    to_sinks = _turned(model, queries.clamp(max=attention.sinks + attention.window - 1))
    return Places(at, _turned(model, (keys - start).where(~is_sink, keys)), found, to_sinks)


def _turned(model: PreTrainedModel, at: Tensor) -> Turned:
    rotary = model.get_decoder().rotary_emb
    cos, sin = rotary(model.get_input_embeddings().weight[:1], at[None])
    # Some kinds scale queries and keys by it, which has been done when they stood at 0.
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
    """Attention of a layer. With ``places`` queries and keys come as they are before rotation."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if query.shape[2] == 1:
        attention_mask = None  # what one token does not see is not in the cache
    if places is not None:
        near = query
        query, key = _rotated(module, query, places.queries), _rotated(module, key, places.keys)
    if places is None or places.to_sinks is None:
        made: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return made
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


def _rotated(module: Any, states: Tensor, turned: Turned) -> Tensor:
    """Rotated as the layer's own module does it; some rotate a part of each head only."""
    import torch

    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    size = turned[0].shape[-1]
    part, rest = states[..., :size], states[..., size:]
    made: Tensor = rotate(part, part[:, :0], *turned)[0]
    return torch.cat([made, rest], dim=-1) if rest.shape[-1] else made
