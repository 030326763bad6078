"""verl's own worker runs agentrt programs on a server that says what a script says.

    PYTHONPATH=.:.clients/verl .venv/bin/python tests/training/verl_worker.py

The worker, its registry, its post-processing and its batches are verl's. The last line is what came
out, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from langgraph.graph import END, START, MessagesState, StateGraph
from omegaconf import OmegaConf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.experimental.agent_loop import agent_loop
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from agentrt import Context, program, tool
from agentrt.errors import CallRejectedError
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.training.verl import ProgramLoop, close_loops

WORDS = ["<pad>", "</s>", "<user>", "<assistant>", "look", "up", "sky", "sea"]
WORDS += ["blue", "green", "wrong"]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} </s> "
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    return {"sky": "blue", "sea": "green"}[word]


@program
async def looks(ctx: Context, question: list[dict[str, str]]) -> str:
    """Two turns with a tool between them; it fails where the model calls for what is not there."""
    call = await ctx.llm(question, max_tokens=4, temperature=0.0)
    colour = await ctx.tool(look_up, word=call.text.split()[-1])
    chat: list[Any] = [*question, call.message, {"role": "user", "content": colour}]
    answer = await ctx.llm(chat, max_tokens=4)
    ctx.reward(0.25)
    ctx.reward(float(answer.text == colour) / 2)
    return answer.text


@program
async def forks(ctx: Context, fields: dict[str, Any]) -> None:
    """Two calls that do not extend each other, and no reward."""
    await ctx.llm(f"{fields['word']} up", max_tokens=4)
    await ctx.llm("look", max_tokens=4)


@program
async def scores(ctx: Context, question: list[dict[str, str]]) -> list[str]:
    """Values of which verl's servers know nothing."""
    context = await ctx.context("<user> sky </s> <assistant>")
    refused = []
    for work in (context.score("sky"), context.next_tokens(2), context.generate(4, logprobs=2)):
        try:
            await work
        except CallRejectedError as error:
            refused.append(str(error))
    assert (await context.generate(4, logprobs=0)).logprobs
    return refused


async def answers(state: MessagesState) -> MessagesState:
    await asyncio.sleep(0)
    return {"messages": [await ChatAgentRT(max_tokens=4).ainvoke(state["messages"])]}


GRAPH = StateGraph(MessagesState)
GRAPH.add_node("answers", answers)
GRAPH.add_edge(START, "answers")
GRAPH.add_edge("answers", END)
asks = GRAPH.compile()


class Servers:
    """In the place of verl's client. It answers the last word of a user."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> TokenOutput:
        self.requests.append({"id": request_id, "prompt": prompt_ids, **sampling_params})
        await asyncio.sleep(0)
        last = WORDS[prompt_ids[-3]]
        said = f"look up {last} </s>" if last in ("sky", "sea", "wrong") else f"{last} </s>"
        ids = [WORDS.index(word) for word in said.split()]
        logprobs = [-(n + 1) / 8 for n in range(len(ids))]
        steps = {"global_steps": 7, "min_global_steps": 7, "max_global_steps": 7}
        return TokenOutput(token_ids=ids, log_probs=logprobs, num_preempted=1, extra_fields=steps)


def tokenizer() -> PreTrainedTokenizerFast:
    ids = {word: number for number, word in enumerate(WORDS)}
    model = Tokenizer(WordLevel(ids, unk_token="<pad>"))
    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE
    )


def worker(servers: Servers) -> Any:
    """verl's worker, without what loads a model's configuration."""
    rollout = {
        "prompt_length": 8,
        "response_length": 12,
        "max_model_len": 64,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "calculate_log_probs": True,
        "val_kwargs": {"temperature": 0.0, "top_p": 1.0, "top_k": -1},
        "agent": {"default_agent_loop": "looks"},
    }
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": rollout, "model": {"path": "none"}},
            "data": {"apply_chat_template_kwargs": {}},
        }
    )
    made = object.__new__(agent_loop.AgentLoopWorker)
    made.config, made.rollout_config = config, config.actor_rollout_ref.rollout
    made.llm_client, made.tokenizer, made.processor = servers, tokenizer(), None
    made.hf_model_type, made.dataset_cls, made.tools = None, RLHFDataset, []
    made.mm_processor_kwargs, made.reward_loop_worker_handles = {}, None
    made.distillation_enabled = False
    return made


def registered(name: str, **options: Any) -> None:
    """As a line of the file that verl's ``agent_loop_config_path`` names."""
    target = f"{ProgramLoop.__module__}.{ProgramLoop.__qualname__}"
    agent_loop._agent_loop_registry[name] = {"_target_": target, **options}


def rows(words: list[str], name: str) -> DataProto:
    prompts = np.empty(len(words), dtype=object)
    prompts[:] = [np.array([{"role": "user", "content": word}], dtype=object) for word in words]
    columns = {
        "raw_prompt": prompts,
        "word": np.array(words, dtype=object),
        "agent_name": np.array([name] * len(words), dtype=object),
        "index": np.arange(len(words)),
    }
    return DataProto(non_tensor_batch=columns, meta_info={"global_steps": 3})


async def main() -> dict[str, Any]:
    here = Path(__file__).stem
    registered("looks", program=f"{here}:looks")
    registered("strict", program=f"{here}:looks", failure_reward=None)
    registered("forks", program=f"{here}:forks", input_field=None, sequences="longest")
    registered("no field", program=f"{here}:looks", input_field="question")
    servers = Servers()
    made = worker(servers)
    batch = await made.generate_sequences(rows(["sky", "sea", "wrong"], "looks"))
    requests = list(servers.requests)
    forked = await made.generate_sequences(rows(["sky"], "forks"))
    errors = {}
    for name in ("strict", "no field"):
        try:
            await made.generate_sequences(rows(["wrong"], name))
        except Exception as error:  # what verl would see
            errors[name] = f"{type(error).__name__}: {error}"
    parts = (
        *(agent_loop.DictConfigWrap(made.config), servers, made.tokenizer, None, RLHFDataset),
        agent_loop.DictConfigWrap(made.config.data),
    )
    loop = ProgramLoop(*parts, program=forks, input_field=None)
    several = await loop.run({"logprobs": False}, word="sky")
    loop = ProgramLoop(*parts, program=asks, input_field=None)
    chat = [{"role": "user", "content": "sky"}]
    graph = await loop.run({"logprobs": False, "temperature": 0.7}, messages=chat)
    graph_request = servers.requests[-1]
    loop = ProgramLoop(*parts, program=scores)
    refused = (await loop.run({}, raw_prompt=[])).extra_fields["agentrt_result"]
    await close_loops()
    tensors = {name: batch.batch[name].tolist() for name in batch.batch.keys()}  # noqa: SIM118  # not a mapping
    fields = {
        name: values.tolist()
        for name, values in batch.non_tensor_batch.items()
        if name != "raw_prompt"
    }
    return {
        "requests": requests,
        "tensors": tensors,
        "fields": fields,
        "metrics": batch.meta_info["metrics"],
        "forked": {
            "responses": forked.batch["responses"].tolist(),
            "has_rewards": "rm_scores" in forked.batch.keys(),  # noqa: SIM118  # not a mapping
        },
        "several": [
            each.model_dump(include={"response_ids", "response_logprobs", "reward_score"})
            for each in several
        ],
        "graph": {"ids": graph.response_ids, "temperature": graph_request["temperature"]},
        "errors": errors,
        "refused": refused,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main()), default=str))
