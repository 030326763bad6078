"""The same programs with longer or shorter prompts, outputs and gaps."""

from __future__ import annotations

from dataclasses import replace

from agentrt.workloads.replay import Scales
from agentrt.workloads.shape import CallShape, ProgramShape


def scaled(program: ProgramShape, scales: Scales) -> ProgramShape:
    """A program whose prompts, outputs and gaps are so many times what they were.

    A prompt still holds the whole prompt and output that it extends, even where it would be
    shorter by the scale; what is shared by the programs of a type stays so.
    """
    if scales == Scales():
        return program
    calls: list[CallShape] = []
    for call in program.calls:
        prompt = round(call.prompt_tokens * scales.context)
        if call.extends is not None:
            earlier = calls[call.extends]
            prompt = max(prompt, earlier.prompt_tokens + earlier.output_tokens)
        output = max(1, round(call.output_tokens * scales.output))
        calls.append(
            replace(call, prompt_tokens=prompt, output_tokens=output, gap_s=call.gap_s * scales.gap)
        )
    system = round(program.system_tokens * scales.context)
    return replace(program, calls=tuple(calls), system_tokens=system)
