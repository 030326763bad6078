"""vLLM's front end: its parser of flags, its application, and how a prompt is rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI


def make_arg_parser(parser: Any) -> Any:
    """The parser of `vllm serve`'s flags."""
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser as make  # 0.32
    except ImportError:
        from vllm.entrypoints.common.cli_args import make_arg_parser as make  # 0.33
    return make(parser)


async def make_app(client: Any, args: Namespace, tasks: tuple[Any, ...]) -> FastAPI:
    """vLLM's application on an engine client, with its state."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    app = build_app(args, tasks, client.model_config)
    await init_app_state(client, app.state, args, tasks)
    return app


def make_renderer(vllm_config: Any) -> tuple[Any, Any]:
    """A renderer of one's own for a model, and the processor of its engine's inputs."""
    from vllm.renderers import renderer_from_config
    from vllm.v1.engine.input_processor import InputProcessor

    renderer = renderer_from_config(vllm_config)
    return renderer, InputProcessor(vllm_config, renderer)


async def render_prompt(renderer: Any, model_config: Any, prompt: Any) -> Any:
    """A raw prompt (text or token ids) as an engine takes it."""
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    parsed = parse_model_prompt(model_config, prompt)
    (rendered,) = await renderer.render_cmpl_async([parsed], renderer.default_cmpl_tok_params)
    return rendered
