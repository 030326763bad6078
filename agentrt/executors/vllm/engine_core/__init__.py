"""Code that runs only in the engine core's process: agentrt's scheduler and its links to vLLM.

- `scheduler`: vLLM's scheduler class; it turns vLLM's methods into events of `SchedulerCore`.
- `request_queue`: vLLM's waiting queue in the core's order, the order of running requests, and
  whether the LoRA adapters of waiting requests fit into a step.
- `block_retention`: applies the retention policy to vLLM's blocks. It has vLLM's queue of free
  blocks, with lists of blocks that are handed out last, and remembers which blocks a program's
  calls have computed.
- `host_tier`: the eviction policy of host memory.
- `kv_events`: which blocks the prefix cache has, for a router.
- `call_notes`: what happens to each call, and which programs cause its waits.
- `weights`: the versions of the weights.
- `control`: the answers to control messages of an engine's client.

Modules of the package above belong to the user's process or to both processes, except `compiling`,
which belongs to the engine core.
"""
