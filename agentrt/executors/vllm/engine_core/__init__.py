"""Code of the engine core's process alone: agentrt's scheduler, and what translates for it.

- `scheduler`: vLLM's scheduler class; it turns vLLM's methods into events of `SchedulerCore`.
- `request_queue`: vLLM's waiting queue in the core's order, and the order of running requests.
- `block_retention`: applies the retention policy to vLLM's blocks.
- `free_queue`: vLLM's queue of free blocks, with protected lists.
- `host_tier`: the eviction policy of host memory.
- `prefix_history`: which blocks a program's calls have computed.
- `kv_events`: which blocks the prefix cache has, for a router.
- `call_notes`: what happens to each call, and which programs cause its waits.
- `weights`: the versions of the weights.
- `control`: answers messages of an engine's client.

Modules of the package above belong to the user's process, or to both processes.
"""
