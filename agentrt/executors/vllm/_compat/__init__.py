"""Where we reach into vLLM: what is read, asked and taken there that is not public API.

One module for each thing of vLLM's that is reached into, and a new line belongs to its module:

- `core`: the engine core and its client; utility methods, the reader of outputs, the process.
- `batches`: how the client sends messages to the core, and the core reads them.
- `scheduling`: the scheduler (the seam ``scheduler_cls`` is documented, its interface is not
  promised), and what its steps held.
- `requests`: a request, and its sampling parameters.
- `pool`: the KV-cache manager, its block pool, and the queue of free blocks.
- `offloading`: host memory's policy (loaded by name; vLLM calls its interface experimental).
- `seeds`: what a CPU's model runner does with a seeded request's samples that do not count.
- `prefixes`: block hashes, the map of them, and the publisher of KV events.
- `grammars`: how structured outputs are checked, and the threads that compile them.
- `logits`: what each model runner takes as a logits processor (a documented plug-in).
- `stats`: vLLM's own metrics, and where they are registered.
- `chats`: what chat completions render and format, without the engine client between the two.
- `cut_off`: how the front end reads whole outputs that were cut off, beside its parsers.
- `complete_calls`: what its parsers leave out of a stream and read in the whole output.
- `parsing`: what a tool parser is made of (a documented plug-in), and what it reads and gives.

Callers import names from the modules, so their imports say what of vLLM they lean on; the
modules know each other by types alone. A caller gets plain values where it can, and vLLM's
own classes, under one name each, where it has to subclass or annotate.

Where versions differ, a function here tries one and then the other, and says beside each which
has it. Read against vLLM 0.32.0 and 0.33.0. At an upgrade:

1. Run ``tests/executors/vllm/test_compat.py``, which names what is gone or takes other
   arguments, and read each function here beside the new source of what it reaches into.
   ``make setup-next`` makes an environment with a version that has no build for CPUs yet.
2. Ask of each new feature whether a schedule now depends on more than a recording holds:
   `not_replayable` and `describe_request` in ``tests/lab/engine/recorded.py`` list what does.
3. Read what goes by vLLM's classes as a whole, beside this package: `scheduler` overrides
   methods, `queue` and `free_queue` subclass queues. In ``agentrt/lab/engine``, `probe`
   stands before methods, `headless` and `virtual` build a scheduler, requests and outputs by
   hand; ``recording.py`` and ``recorded.py`` in ``tests/lab/engine`` do so, too.
4. Run ``make test-next``, and only then widen the range of versions in ``pyproject.toml``.
"""

VERSIONS = ("0.32", "0.33")
"""Of vLLM: the range that pyproject.toml allows."""
