"""A tiny model learns by GRPO to call the right tool, while agentrt's engine goes on serving it.

    python demos/learn_tool.py --plot reward.svg

A question such as "how hot is the press" needs the right instrument (thermometer) and the right
machine (press). The model calls a tool with both, reads a number, and answers with it. The readings
are different for each question, so that only the right call leads to the right answer.

The model has 84,000 weights and a vocabulary of 34 words. Its warm-up teaches the form: a call, and
an answer that repeats the reading. The instruments and machines of the warm-up are random, so that
the model then knows how to call a tool, but not which. This is what GRPO teaches, by the reward
alone: 1 for the right answer, else 0. Two of the 12 questions are held out, and are asked only in
the tests.

It needs agentrt[engine-cpu] and agentrt[plot], and takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrt import Context, Runtime, program, tool
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.training import Group, arrays, groups

INSTRUMENTS = {"hot": "thermometer", "fast": "tachometer", "loud": "microphone"}
MACHINES = ("press", "lathe", "mill", "crane")
READINGS = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight"),
    *("nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
)
SPECIAL = ("<pad>", "</s>", "<user>", "<assistant>")
WORDS = (
    *SPECIAL,
    *("how", "is", "the", "read"),
    *INSTRUMENTS,
    *INSTRUMENTS.values(),
    *MACHINES,
    *READINGS,
)
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} </s> "
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
HELD_OUT = 2
Pair = tuple[str, str]


# -- the program -----------------------------------------------------------------------------


@tool
async def read(instrument: str, machine: str, day: int) -> str:
    """Read an instrument at a machine. Each day has other readings, and on a day no two readings
    are equal, so that a wrong call never gives the right answer.
    """
    places = [f"{each} {where}" for each in INSTRUMENTS.values() for where in MACHINES]
    readings = random.Random(day).sample(READINGS, len(places))
    return readings[places.index(f"{instrument} {machine}")]


@program
async def inspect(ctx: Context, task: dict[str, Any]) -> bool:
    """Ask the model for a call, make the call, and let the model answer with what it read."""
    chat = [{"role": "user", "content": task["question"]}]
    call = await ctx.llm(chat, max_tokens=4, temperature=1.0)
    words = call.text.split()
    is_call = (
        len(words) == 3
        and words[0] == "read"
        and words[1] in INSTRUMENTS.values()
        and words[2] in MACHINES
    )
    right = False
    if is_call:
        reading = await ctx.tool(read, instrument=words[1], machine=words[2], day=task["day"])
        chat += [call.message, {"role": "user", "content": reading}]
        answer = await ctx.llm(chat, max_tokens=2, temperature=1.0)
        right = answer.text.strip() == task["answer"]
    ctx.reward(float(right))
    return right


async def tasks(pairs: list[Pair], rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Draw questions, each with its answer on a day of its own."""
    drawn = []
    for _ in range(count):
        property_, machine = rng.choice(pairs)
        day = rng.randrange(10**9)
        answer = await read(INSTRUMENTS[property_], machine, day)
        drawn.append(
            {"question": f"how {property_} is the {machine}", "day": day, "answer": answer}
        )
    return drawn


# -- the model -------------------------------------------------------------------------------


def make_model(folder: Path, seed: int) -> Any:
    """Make the untrained model with its tokenizer in ``folder``, and return the model."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<pad>",
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids["</s>"],
        pad_token_id=ids["<pad>"],
    )
    return LlamaForCausalLM(config)


def log_probabilities(model: Any, ids: Any, attention: Any) -> Any:
    """Return the log probability of each token but the first, after the tokens before it."""
    logits = model(ids, attention_mask=attention).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def warm_up(model: Any, pairs: list[Pair], rng: random.Random, steps: int) -> None:
    """Teach the form of calls and answers. Instruments and machines are random."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    instruments = [*INSTRUMENTS.values()]
    for step in range(steps):
        texts = []
        for _ in range(32):
            property_, machine = rng.choice(pairs)
            number = rng.choice(READINGS)
            texts.append(
                f"<user> how {property_} is the {machine} </s> <assistant> "
                f"read {rng.choice(instruments)} {rng.choice(MACHINES)} </s> "
                f"<user> {number} </s> <assistant> {number} </s>"
            )
        ids = torch.tensor([[WORDS.index(word) for word in text.split()] for text in texts])
        own = log_probabilities(model, ids, torch.ones_like(ids))
        loss = -(own[:, 7:11].sum() + own[:, 15:].sum()) / (32 * 6)
        for parameters in optimizer.param_groups:
            parameters["lr"] = 5e-3 * min(1, (step + 1) / 20) * (1 - 0.9 * step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def learn(model: Any, optimizer: Any, taken: list[Group], epochs: int, version: int) -> float:
    """Make the steps of GRPO on some groups. Return the largest difference, before these steps,
    between the engine's and this model's log probabilities of the tokens that the weights
    ``version`` generated.
    """
    import torch

    table = arrays(taken)
    ids, attention = torch.tensor(table.ids), torch.tensor(table.attention)
    mask = torch.tensor(table.mask)[:, 1:].float()
    old = torch.tensor(table.logprobs)[:, 1:]
    advantages = torch.tensor(table.advantages)[:, None]
    difference = 0.0
    for epoch in range(epochs):
        new = log_probabilities(model, ids, attention)
        if epoch == 0:
            fresh = torch.tensor(table.versions)[:, 1:] == version
            difference = float(((new.detach() - old).abs() * fresh).max())
        ratio = (new - old).exp()
        clipped = ratio.clamp(0.8, 1.28)
        gain = torch.minimum(ratio * advantages, clipped * advantages)
        loss = -(gain * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return difference


# -- training --------------------------------------------------------------------------------


async def mean_reward(runtime: Runtime, questions: list[dict[str, Any]]) -> float:
    """Return the mean reward of one sample for each question."""
    async with groups(inspect, questions, samples=1, ahead=64, runtime=runtime) as stream:
        rewards = [group.rewards[0] async for group in stream]
    return sum(rewards) / len(rewards)


async def train(
    *,
    seed: int,
    steps: int,
    inputs: int,
    samples: int,
    rate: float,
    epochs: int,
    warm: int,
    questions: int = 200,
) -> tuple[list[float], dict[str, float]]:
    """Warm the model up and train it. Return the mean reward of each step, and the rewards of the
    tests before and after.
    """
    import torch

    torch.set_num_threads(1)  # the engine core uses the other processor
    rng = random.Random(seed)
    pairs = [(property_, machine) for property_ in INSTRUMENTS for machine in MACHINES]
    rng.shuffle(pairs)
    held_out, seen = pairs[:HELD_OUT], pairs[HELD_OUT:]
    tests = {
        "seen": await tasks(seen, rng, questions),
        "held out": await tasks(held_out, rng, questions),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), seed)
        warm_up(model, seen, rng, warm)
        model.save_pretrained(folder)
        flags = ("--dtype", "float32", "--max-model-len", "64")
        engine = VLLMEngine(EngineOptions(folder, 128, flags=flags))
        async with Runtime(engine, seed=seed) as runtime:
            scores = {f"{name}, before": await mean_reward(runtime, tests[name]) for name in tests}
            for name, score in scores.items():
                print(f"{name}: {score:.2f}", flush=True)
            curve = await steps_of(
                runtime, model, seen, rng, steps, inputs, samples, rate=rate, epochs=epochs
            )
            for name, test in tests.items():
                scores[f"{name}, after"] = await mean_reward(runtime, test)
                print(f"{name}, after: {scores[f'{name}, after']:.2f}", flush=True)
    return curve, scores


async def steps_of(
    runtime: Runtime,
    model: Any,
    seen: list[Pair],
    rng: random.Random,
    steps: int,
    inputs: int,
    samples: int,
    *,
    rate: float,
    epochs: int,
) -> list[float]:
    """Take groups, learn from them, and put the new weights into the running engine, again and
    again. While the model learns, the engine already makes the next groups.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    questions = await tasks(seen, rng, steps * inputs * 2)
    curve: list[float] = []
    stream = groups(
        inspect, questions, samples=samples, ahead=inputs, max_staleness=1, runtime=runtime
    )
    async with stream:
        for step in range(steps):
            taken = await stream.take(inputs)
            rewards = [reward for group in taken for reward in group.rewards]
            curve.append(sum(rewards) / len(rewards))
            difference = await asyncio.to_thread(
                learn, model, optimizer, taken, epochs, runtime.weights_version
            )
            version = await runtime.update_weights(weights_of(model), mode="wait")
            if step % 5 == 0 or step == steps - 1:
                print(
                    f"step {step + 1}: reward {curve[-1]:.2f}, weights {version}, log "
                    f"probabilities of engine and trainer differ by {difference:.4f} at most",
                    flush=True,
                )
    return curve


def weights_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Return the weights by the names that they have in a checkpoint: the output layer is the
    embedding, and has no weights of its own.
    """
    state = model.state_dict()
    return ((name, state[name]) for name in state if name != "lm_head.weight")


def draw(curves: list[tuple[int, list[float]]], file: Path) -> None:
    """Draw the reward of each step, and its mean over ten steps."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for number, (seed, curve) in enumerate(curves):
        last_ten = [curve[max(0, n - 9) : n + 1] for n in range(len(curve))]
        means = [sum(values) / len(values) for values in last_ten]
        axes.plot(range(1, len(curve) + 1), curve, alpha=0.25, color=f"C{number}")
        axes.plot(range(1, len(curve) + 1), means, color=f"C{number}", label=f"seed {seed}")
    axes.set(xlabel="step of GRPO", ylabel="mean reward", ylim=(0, 1))
    axes.legend()
    figure.savefig(file)
    print(f"the rewards are drawn in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="train once for each")
    parser.add_argument("--steps", type=int, default=60, help="number of steps of GRPO")
    parser.add_argument("--inputs", type=int, default=8, help="number of groups in a step")
    parser.add_argument("--samples", type=int, default=16, help="number of samples in a group")
    parser.add_argument("--plot", type=Path, default=Path("reward.svg"), help="file of the plot")
    options = parser.parse_args()
    if not options.plot.parent.is_dir():
        parser.error(f"--plot {options.plot}: no such folder {options.plot.parent}; make it first")
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: use at least 1")
    curves = []
    for seed in options.seeds:
        began = time.monotonic()
        curve, _ = asyncio.run(
            train(
                seed=seed,
                steps=options.steps,
                inputs=options.inputs,
                samples=options.samples,
                rate=1e-3,
                epochs=2,
                warm=150,
            )
        )
        print(f"seed {seed}: {time.monotonic() - began:.0f} seconds")
        curves.append((seed, curve))
    draw(curves, options.plot)


if __name__ == "__main__":  # the engine's core is a process of its own
    main()
