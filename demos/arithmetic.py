"""Word problems, scored: the model reasons, answers with a number, and three scores judge it.

    agentrt run demos/arithmetic.py --inputs demos/arithmetic.jsonl --out results.jsonl --samples 4
    agentrt results show results.jsonl

The embedded model has 135M parameters and answers nearly all wrongly: --model names another.
"""

from typing import Any

from agentrt import Context, program, score

ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
}


@program
async def arithmetic(ctx: Context, question: str) -> dict[str, Any]:
    """Think first, then answer; the two calls share their prompt's beginning."""
    ask = {"role": "user", "content": f"{question}\nThink step by step, in one or two sentences."}
    thought = await ctx.llm([ask], max_tokens=80, temperature=0.7)
    then = [
        ask,
        {"role": "assistant", "content": thought.text},
        {"role": "user", "content": "Now give the answer alone, as a number."},
    ]
    reply = await ctx.llm(then, schema=ANSWER, max_tokens=24)
    return {"thought": thought.text, "answer": (reply.parsed or {}).get("answer")}


@score
def right(record: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether the answer is that of the record."""
    return bool(result["answer"] == record["answer"])


@score
def relative_error(record: dict[str, Any], result: dict[str, Any]) -> float | None:
    """The relative error of the answer, at most 1; None if the answer is no number."""
    if result["answer"] is None:
        return None
    return float(min(1.0, abs(result["answer"] - record["answer"]) / max(1, abs(record["answer"]))))


@score
async def judge(ctx: Context, record: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether a model finds that the thought fits the question."""
    prompt = f"Question: {record['input']}\nThought: {result['thought']}\nDoes the thought fit?"
    schema = {"type": "string", "enum": ["yes", "no"]}
    return bool((await ctx.llm(prompt, schema=schema, max_tokens=8)).parsed == "yes")
