"""All uses of vLLM's internals, that is, of names that are not part of its public API.

Each module covers one part of vLLM. Put a new use into the module of its part. A use that
must be installed before vLLM runs, such as a replaced method, is installed at one of three places.
The place depends on the process in which the use must take effect.

`ProgramScheduler.__init__` installs the replacements of the engine core (`core` and `batches` are
installed when `agentrt.executors.vllm.engine_core.scheduler` is imported, since the core needs them
before its scheduler):

- `core`: the engine core and its client: utility methods, pauses, the reader of outputs, also of
  outputs that it cannot read, the process; the client's own metrics and their registry, which
  `VLLMEngine._load` installs.
- `batches`: how the client sends messages to the core, and how the core reads them. The client's
  part is installed by `VLLMEngine.start`.
- `scheduling`: the scheduler, the outputs of its steps, and shortcuts through its steps. vLLM
  documents the option ``scheduler_cls``, but does not promise the scheduler's interface.
- `requests`: a request and its sampling parameters.
- `pool`: the KV-cache manager, its block pool and the queue of free blocks; shortcuts through the
  allocation of KV-cache slots.
- `offloading`: the cache policy of host memory. vLLM loads it by name, and calls its interface
  experimental.
- `sampling`: how the CPU model runner resets the random generator of a seeded request after it has
  discarded a sample, how it accepts the tokens of a draft model, and how it scores prompts with
  LoRA adapters; the model's own log probabilities for outputs that a grammar constrains. It also
  has the interface of logits processors in each model runner (a documented plug-in), which an
  engine's client uses.
- `prefixes`: block hashes, the prefix cache's map of blocks, and the publisher of KV events.

`VLLMEngine._load` installs the replacements of an engine's client, before vLLM starts the core:

- `grammars`: the validation of structured outputs, and the threads that compile grammars. The
  threads are in the core, and installed there.
- `weights`: replaces the model's weights in vLLM's workers (``worker_extension_cls`` is public),
  and repairs the state of vLLM's reloading after a failure; looks for the files of LoRA adapters.

`VLLMFrontend.open` installs the replacements of the front end, on one application of vLLM:

- `api_server`: vLLM's flags, its HTTP application, renderers, chat templates and parsers; rendering
  and formatting of chat completions, without the engine client in between. It also ends responses
  that are generated in the background, and the streams of their events. An engine calls its
  `render_elsewhere`, too.
- `cut_off`: makes vLLM's parsers read the same from a whole output and from its stream, even if
  the output was cut off.
- `held_calls`, `token_texts`: parts of `cut_off`. The first holds a stream's calls back, and adds
  calls at the stream's end. The second splits the stream into tokens, and keeps text and calls in
  order.
- `tools`: the types of a tool parser (a documented plug-in). It also leaves a tool's arguments
  unconstrained if the grammar compiler refuses their schema.

For type checkers only, `bases` (a stub, ``bases.pyi``) declares the classes of vLLM that
``engine_core`` subclasses.

Callers import names from these modules, so that their imports show which parts of vLLM they
depend on. Functions return plain values where they can. vLLM's own classes are re-exported only
for callers that subclass them, use them as annotations, or (those of tool parsers) create them.

Where versions of vLLM differ, a function tries both ways, and a comment names the version of each.
Written for vLLM 0.32.0 and 0.33.0. To support a new version:

1. Run ``tests/executors/vllm/test_compat.py``, which lists names that no longer exist or have other
   arguments. Compare each function here with the new source of the vLLM code that it uses. ``make
   setup-next`` creates an environment with a version that has no CPU build yet.
2. Check for each new feature whether schedules now depend on something that a recording does not
   contain. `Event` in ``tests/lab/engine/recording.py`` says what a recording contains.
3. Check the code outside this package that depends on whole classes of vLLM. In ``engine_core``,
   `scheduler` overrides methods, `request_queue` and `block_retention` subclass queues, and
   `host_tier` subclasses the cache policy. In ``entrypoints``, `client` implements the engine
   client, and `model_frontend`, `arranged` and `tool_form` replace methods of renderers. In
   ``agentrt/lab/engine``, `probe` wraps methods, `host` subclasses the specification and the worker
   of host memory, and `headless` and `virtual` build a scheduler, requests and outputs by hand, as
   do ``recording.py`` and ``replaying.py`` in ``tests/lab/engine``.
4. Run ``make test-next``, and only then widen the range of versions in ``pyproject.toml``.
"""

VERSIONS = ("0.32", "0.33")
"""The minor versions of vLLM that ``pyproject.toml`` allows."""
