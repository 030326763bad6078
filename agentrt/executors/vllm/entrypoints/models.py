"""Opens the front end of any executor. If an executor has several models, each has a front end, and
the model that a request names determines which front end answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from agentrt.errors import ConfigError, NotServedError
from agentrt.executors.base import Executor
from agentrt.executors.chat_api import (
    Answer,
    Caller,
    Frontend,
    FrontProfile,
    Request,
    RequestFrontend,
)
from agentrt.executors.info import display_name, not_served
from agentrt.request import CallSpec

if TYPE_CHECKING:
    from agentrt.executors.vllm.entrypoints.model_frontend import VLLMFrontend


async def open_frontend(
    executor: Executor, names: Sequence[str] = (), *, reminders: bool = True
) -> Frontend:
    """Open a front end whose calls run on ``executor``, which must have started.

    ``names`` are the names under which clients request the first model; by default its own name.
    A model whose name is taken by a model before it, such as a second folder that is called
    ``checkpoint``, is requested by its whole path. With ``reminders``, vLLM's front end keeps
    system messages in the middle of a chat at their place, whatever the chat template does. Raises
    `ConfigError` for flags that vLLM's front end refuses, and for a LoRA adapter whose name is
    taken.
    """
    own: Frontend | None = executor.own_frontend(names)
    if own is not None:
        return own
    setups = await executor.front_setups()
    if not setups:
        return RequestFrontend(executor.info)
    # Imports vLLM's server, which takes seconds.
    from agentrt.executors.vllm.entrypoints.model_frontend import VLLMFrontend

    fronts: list[VLLMFrontend] = []
    own_names = names
    try:
        for setup in setups:
            taken = {name for front in fronts for name in front.names}
            if fronts:
                own_names = (setup.model,) if display_name(setup.model) in taken else ()
            front = await VLLMFrontend.open(setup, executor, own_names, reminders=reminders)
            fronts.append(front)
            if repeated := taken.intersection(front.names):
                raise ConfigError(
                    f"two models have the name {min(repeated)!r}, so that requests could not tell "
                    "them apart; give each model and each LoRA adapter (--lora-modules NAME=PATH) "
                    "a name of its own"
                )
    except BaseException:
        for front in fronts:
            await front.close()
        raise
    return fronts[0] if len(fronts) == 1 else FrontendsByModel(fronts)


class FrontendsByModel(Frontend):
    """The front ends of several models. A request that names no model goes to the first front
    end.
    """

    def __init__(self, fronts: Sequence[VLLMFrontend]) -> None:
        self.fronts = tuple(fronts)

    def of(self, model: str | None) -> VLLMFrontend:
        """Return the front end that serves ``model``; None means the first model. Raises
        `NotServedError` if no front end serves it.
        """
        # A listed name of one model may also be the last part of another model's path.
        for front in self.fronts:
            if model in front.names:
                return front
        for front in self.fronts:
            try:
                front.served_as(model)
            except NotServedError:
                continue
            return front
        assert model is not None
        raise not_served(model, tuple(name for front in self.fronts for name in front.names))

    async def chat(self, request: Request, caller: Caller) -> Answer:
        return await self.of(request.get("model")).chat(request, caller)

    def chat_stream(self, request: Request, caller: Caller) -> AsyncGenerator[Answer, None]:
        return self.of(request.get("model")).chat_stream(request, caller)

    def profile(self, model: str | None = None) -> FrontProfile:
        return self.of(model).profile(model)

    async def render(self, request: Request) -> list[int]:
        return await self.of(request.get("model")).render(request)

    async def tokenize(self, text: str, model: str | None = None) -> list[int]:
        return await self.of(model).tokenize(text, model)

    async def detokenize(self, ids: Sequence[int], model: str | None = None) -> str:
        return await self.of(model).detokenize(ids, model)

    def addressed(self, spec: CallSpec) -> CallSpec:
        return self.of(spec.model).addressed(spec)

    async def close(self) -> None:
        for front in self.fronts:
            await front.close()
