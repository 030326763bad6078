"""Reads outputs in the tool form: see `agentrt.executors.vllm.frontend.partial`."""

from agentrt.executors.vllm.frontend.partial import CallPart, OutputReader, read

__all__ = ["CallPart", "OutputReader", "read_cut_off"]

read_cut_off = read
