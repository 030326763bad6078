"""Outputs that obey a constraint, by xgrammar, which vLLM uses, too."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentrt.errors import CallRejectedError
from agentrt.request.sampling import Constraint

if TYPE_CHECKING:
    from torch import Tensor


class Grammars:
    """Compiles constraints for a model of ``vocabulary`` tokens, of which ``stops`` end a text."""

    def __init__(self, tokenizer: Any, vocabulary: int, stops: frozenset[int]) -> None:
        self._of = tokenizer, vocabulary, stops

    @cached_property
    def _compiler(self) -> Any:
        import xgrammar

        tokenizer, vocabulary, stops = self._of
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocabulary, stop_token_ids=sorted(stops)
        )
        return xgrammar.GrammarCompiler(info)

    def follow(self, constraint: Constraint) -> Following:
        """An output at its start. Raises `CallRejectedError` for what is no such constraint."""
        try:
            compiled = self._compiled(constraint.kind, constraint.value)
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            raise CallRejectedError(
                f"the {constraint.kind} that the output has to obey is refused: {error}"
            ) from error
        return Following(compiled, self._of[1])

    def _compiled(self, kind: str, value: Any) -> Any:
        if kind == "json":
            return self._compiler.compile_json_schema(value)
        if kind == "regex":
            return self._compiler.compile_regex(value)
        if kind == "choice":
            texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
            return self._compiler.compile_grammar(f"root ::= {texts}")
        if "::=" in value:
            return self._compiler.compile_grammar(value)
        return self._compiler.compile_lark(value)


class Following:
    """How far an output has come in a compiled grammar."""

    def __init__(self, compiled: Any, vocabulary: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._mask = xgrammar.allocate_token_bitmask(1, vocabulary)

    def only_allowed(self, logits: Tensor) -> Tensor:
        """The logits, without those of tokens that may not come next."""
        import xgrammar

        self._matcher.fill_next_token_bitmask(self._mask)
        masked = logits.clone()[None]
        xgrammar.apply_token_bitmask_inplace(masked, self._mask.to(logits.device))
        return masked[0]

    def accept(self, token: int) -> None:
        """A token has come."""
        self._matcher.accept_token(token)
