"""The techniques of ``benchmarks techniques``."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.techniques import bodies as thoughts
from benchmarks.techniques import calls, decoding
from benchmarks.techniques.bodies import Body


class Technique(NamedTuple):
    """A technique. ``ours`` is the function of a program that uses contexts. ``theirs`` is the
    function of the other side: a client of vLLM's server, or plain code for transformers.
    """

    ours: Body
    theirs: Body


def _same(body: Body) -> Technique:
    return Technique(body, body)


TECHNIQUES = {
    "text completion": _same(thoughts.completion),
    "Tree of Thoughts": _same(thoughts.tree_of_thought),
    "Recursion of Thought": _same(thoughts.recursion_of_thought),
    "Graph of Thoughts": _same(thoughts.graph_of_thought),
    "Skeleton of Thought": _same(thoughts.skeleton_of_thought),
    "prefix caching": _same(thoughts.prefix_caching),
    "modular caching": _same(thoughts.modular_caching),
    "EBNF decoding": _same(decoding.ebnf),
    "beam search": _same(decoding.beam_search),
    "beam search (vLLM's own)": Technique(decoding.beam_search, decoding.servers_beam_search),
    "watermarking": Technique(decoding.watermark, decoding.clients_watermark),
    "output validation": _same(decoding.output_validation),
    "speculative decoding": _same(decoding.speculation),
    "speculative decoding (plain)": Technique(decoding.speculation, decoding.plain_decoding),
    "Jacobi decoding": _same(decoding.jacobi),
    "Jacobi decoding (plain)": Technique(decoding.jacobi, decoding.plain_decoding),
    "ReAct": _same(thoughts.react),
    "ReAct (actions by score)": _same(thoughts.react_by_scores),
    "CodeAct": _same(thoughts.codeact),
    "swarm": _same(thoughts.swarm),
    "function calls": _same(calls.as_clients_do),
    "function calls (1)": Technique(calls.kept, calls.as_clients_do),
    "function calls (1 and 2)": Technique(calls.early, calls.as_clients_do),
    "function calls (1 to 3)": Technique(calls.dropped, calls.as_clients_do),
}
"""A technique with ``plain`` in its name is compared with a single request for all tokens. A
technique with ``vLLM's own`` in its name is compared with a feature of vLLM's server.
"""
OF_A_TRAINED_MODEL = {"speculative decoding (plain)", "Jacobi decoding (plain)"}
"""Techniques that need a trained model: they compare guessed tokens with decoding in one request.
The texts of the tiny model never repeat themselves, so with this model no guess would be right.
"""
