"""What is added inside LangChain: `init_chat_model` has a list of providers, and no registry."""

from __future__ import annotations

from importlib import import_module
from typing import Any

VERSIONS = "langchain 1.4"


def add_provider(name: str, package: str, class_name: str) -> None:
    """Have ``init_chat_model("NAME:MODEL")`` make ``class_name`` of ``package``.

    Nothing where LangChain's agents are not installed, or have moved it.
    """
    try:
        providers: Any = import_module("langchain.chat_models.base")._BUILTIN_PROVIDERS
    except (ImportError, AttributeError):
        return
    providers.setdefault(name, (package, class_name, lambda cls, **options: cls(**options)))
