"""Engines as actors of a real Ray cluster: two nodes on loopback, one of which is killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrt import Context, Runtime, program
from agentrt.engines import EngineOptions, ReplicaSet
from agentrt.errors import CallRejectedError, ConfigError, NoRoomError
from agentrt.executors.base import NO_ROOM_YET, Executor, last_reply
from agentrt.executors.chat_api import Frontend
from agentrt.executors.ray import Cluster, RayEngine
from agentrt.executors.replicas import Backoff, Health, ReplicaState
from agentrt.request import Call, CallSpec, Identity
from agentrt.router import make_router
from benchmarks.chaos.programs import ChaosPrograms
from benchmarks.chaos.report import CallAudit
from tests.doubles.raycluster import LocalCluster
from tests.engine.forked import python_for_ray
from tests.engine.lent import Lent, WithFront, knows_what_they_hold, lent_front
from tests.engine.seeing import image, said, seeing_flags
from tests.engine.tiny_vision import tiny_adapter, tiny_vision_model
from tests.executors.replicas.reading import Calls, streamed, whole

pytest.importorskip("vllm")
ray = pytest.importorskip("ray")
# A cluster and two engines start before the first test: beside all other tests they take minutes.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1200),
]

PROGRAMS = ChaosPrograms(10, 12)
GIB = 1 << 30


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    python = python_for_ray(tmp_path_factory.mktemp("python"))
    with LocalCluster(nodes=2, cpus=1, python=str(python)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def audit() -> CallAudit:
    return CallAudit()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    nodes: LocalCluster, audit: CallAudit, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ReplicaSet]:
    model = tiny_vision_model(tmp_path_factory.mktemp("model"))
    adapter = tiny_adapter(tmp_path_factory.mktemp("adapter"), model)
    # Relative to the folder of this process, which is not that of the nodes.
    flags = (*seeing_flags(Path(adapter.name)), "--max-model-len", "1024")
    options = EngineOptions(str(model), 8, flags=flags, kv_events=True)
    cluster = Cluster(nodes.address, 2, memory=GIB)
    replicas = ReplicaSet(
        lambda index: audit.engine(RayEngine(options, cluster)),
        2,
        make_router("least-used"),
        backoff=Backoff(first_s=0.1),
        # Other tests may leave the engines no processor time. A replica that is restarted for that
        # would fail all tests here, since they keep its first engine.
        health=Health(stall_s=60.0, hang_s=900.0),
        notice=print,
        ready_timeout_s=900.0,
    )
    with pytest.MonkeyPatch.context() as patch:
        # The worker of a node that has room may take longer than this to start there.
        patch.setattr("agentrt.executors.ray.engine._PLACE_S", 900.0)
        patch.chdir(adapter.parent)
        await replicas.start(print)  # so that a start that hangs says where
    yield replicas
    pids = _pids(replicas)
    await replicas.close()
    assert pids
    async with asyncio.timeout(60):
        while any(map(_is_there, pids)):
            await asyncio.sleep(0.05)
    # Ray ends the process of one that is still connected when the cluster goes.
    assert not ray.is_initialized()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def together(replicas: ReplicaSet) -> AsyncIterator[Runtime]:
    """On both engines."""
    async with Runtime(Lent(replicas)) as runtime:
        yield runtime


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(together: Runtime) -> AsyncIterator[Frontend]:
    async with lent_front(together) as front:
        yield front


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(replicas: ReplicaSet, front: Frontend) -> AsyncIterator[Runtime]:
    """On the first engine."""
    async with Runtime(WithFront(Lent(replicas.replicas[0].executor), front)) as runtime:
        yield runtime


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(alone: Runtime) -> list[list[str]]:
    """What one engine alone answers."""
    return await PROGRAMS.run(alone)


def _pids(replicas: ReplicaSet) -> list[int]:
    found: list[int] = []
    for replica in replicas.replicas:
        if replica.state is ReplicaState.READY:
            found += replica.executor.pids()
    return found


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _call(number: int, **options: object) -> Call:
    ids = tuple(range(100 + number, 104 + number))
    spec = CallSpec(ids, ignore_eos=True, **options)  # type: ignore[arg-type]
    return Call(Identity(f"p/{number}", "p", "t"), spec)


async def test_the_texts_are_those_of_one_engine(
    replicas: ReplicaSet, together: Runtime, expected: list[list[str]]
) -> None:
    """Each node has an engine, and both have worked."""
    before = [(await r.executor.snapshot())["steps"] for r in replicas.replicas]
    assert await PROGRAMS.run(together) == expected
    after = [(await r.executor.snapshot())["steps"] for r in replicas.replicas]
    assert all(later > earlier for earlier, later in zip(before, after, strict=True))
    assert len(replicas.info.models) == 1


async def test_contexts_are_those_of_one_engine(alone: Runtime, together: Runtime) -> None:
    """Forks that continue beside each other, and what a score says of what was generated."""

    @program
    async def forks(ctx: Context) -> tuple[list[tuple[int, ...]], list[int]]:
        trunk = await ctx.context(range(100, 180))
        branches = [trunk.fork() for _ in range(4)]
        for number, branch in enumerate(branches):
            await branch.fill([200 + number])
        judge = branches[0].fork()
        made = (branch.generate(6, ignore_eos=True) for branch in branches)
        first, *others = [done.token_ids for done in await asyncio.gather(*made)]
        scores = await judge.score(first, top=1)
        return [first, *others], [score.top[0][0] for score in scores]

    found = [await runtime.start(forks).wait() for runtime in (together, alone)]
    assert found[0] == found[1]
    wrote, likeliest = found[0]
    assert likeliest == list(wrote[0])
    assert len(set(wrote)) > 1


async def test_the_router_knows_what_engines_on_other_nodes_hold(
    replicas: ReplicaSet, front: Frontend, expected: list[list[str]]
) -> None:
    lent = [Lent(replica.executor) for replica in replicas.replicas]
    informed = ReplicaSet(lambda index: lent[index], 2, make_router("cost"))
    async with Runtime(WithFront(informed, front)) as runtime:
        assert await PROGRAMS.run(runtime) == expected
        await knows_what_they_hold(informed)


async def test_a_stream_comes_piece_by_piece(replicas: ReplicaSet) -> None:
    chunks = [c async for c in replicas.generate(_call(1, max_tokens=200), stream=True)]
    assert len(chunks) > 1
    assert chunks[-1].reply is not None
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].reply.text
    assert chunks[-1].reply.report.output_tokens == 200


async def hostile_calls_fail_alone(frontend: Frontend, engine: Executor) -> None:
    """Calls on an actor continue while others of it are refused for a pattern, too slow for the
    engine's steps or none at all, and while a reader of it does not read.
    """
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "ignore_eos": True}
    slow, mine = engine.generate(_call(4, max_tokens=200), stream=True), Calls(engine, 100)
    await anext(slow)

    async def hostile(pattern: str) -> None:
        with pytest.raises(CallRejectedError):
            await frontend.chat({**asked, "structured_outputs": {"regex": pattern}}, mine)

    async def other() -> None:
        for _ in range(3):
            assert (await frontend.chat(asked, mine))["usage"]["completion_tokens"] == 40

    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        for work in (hostile("(((.*)?(.*)?)*(.?)*)*"), hostile("(a"), other()):
            group.create_task(work)
    assert [chunk async for chunk in slow][-1].reply is not None


async def test_a_front_end_here_makes_its_calls_there(
    replicas: ReplicaSet, front: Frontend
) -> None:
    """Rendered in this process, from what an actor says of its engine, and run on either node:
    text, token ids and log probabilities are the same, and so are whole answers. Hostile calls
    are refused there, and hold up no others.
    """
    request = {
        "messages": [{"role": "user", "content": "Tell a story about a cat. " * 20}],
        "max_tokens": 60,
        "temperature": 0.7,
        "seed": 3,
        "logprobs": True,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    engines = [replica.executor for replica in replicas.replicas]
    one, other = [whole(await streamed(front, engine, request)) for engine in engines]
    assert one == other
    assert len(one["token_ids"]) == len(one["entries"]) == 60
    for engine in engines:
        answer = await front.chat(request, Calls(engine))
        choice = answer["choices"][0]
        assert choice["message"]["content"] == one["choices"][0]["message"]["content"]
        assert choice["token_ids"] == one["token_ids"]
        assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"]) > 100
    await hostile_calls_fail_alone(front, engines[0])
    for engine in engines:
        await engine.end_program("p")  # the set does not know that it ran there


async def test_images_and_an_adapter_reach_other_nodes(
    replicas: ReplicaSet, front: Frontend, alone: Runtime
) -> None:
    """Images go there as they were prepared here; an engine loads the adapter from its folder,
    whose path is relative.
    """
    told = []
    async with Runtime(WithFront(Lent(replicas.replicas[1].executor), front)) as other:
        for runtime in (alone, other):
            one = [await said(runtime, *map(image, seen)) for seen in ((), (1,), (1, 2), (1,))]
            told.append([*one, await said(runtime, image(1), model="tuned")])
    assert told[0] == told[1]
    assert told[0][1] == told[0][3]
    assert len(set(told[0])) == 4


async def test_an_aborted_call_is_gone_from_its_engine(replicas: ReplicaSet) -> None:
    chunks = replicas.generate(_call(2, max_tokens=900), stream=True)
    await anext(chunks)
    await chunks.aclose()
    assert (await replicas.aborted("p/2")).output_tokens > 0
    await replicas.end_program("p")
    snapshot = await replicas.snapshot()
    assert (snapshot["running"], snapshot["waiting"], snapshot["programs"]) == ([], [], [])


async def test_a_large_call_that_is_aborted_at_once_does_not_run(replicas: ReplicaSet) -> None:
    """Ray sends a large call apart from the requests that follow it, such as the end of the call,
    of which most would come first. The calls would then run for 900 tokens.
    """

    async def begun(number: int) -> str:
        call = _call(number, max_tokens=900, cache_salt=f"{number}" * 200_000)
        chunks = engine.generate(call, stream=True)
        reading = asyncio.create_task(anext(chunks))
        await asyncio.sleep(0)  # the call is sent
        reading.cancel()
        await asyncio.wait([reading])
        return call.call_id

    engine = replicas.replicas[0].executor
    for call_id in [await begun(number) for number in range(40, 52)]:
        await engine.aborted(call_id)
    await engine.end_program("p")
    snapshot = await engine.snapshot()
    assert (snapshot["running"], snapshot["waiting"], snapshot["programs"]) == ([], [], [])


async def test_the_engine_s_own_errors_come_as_they_are(replicas: ReplicaSet) -> None:
    long = Call(Identity("p/3", "p", "t"), CallSpec(prompt_token_ids=(5,) * 2000))
    with pytest.raises(CallRejectedError, match="the prompt has 2000 tokens"):
        await anext(replicas.generate(long, stream=False))


async def test_weights_reach_other_nodes(replicas: ReplicaSet, tmp_path: Path) -> None:
    """Of a model with images and an adapter. 1. Both engines have the new weights. 2. They go back
    to their own.
    """
    from safetensors.torch import load_file, save_file

    own = replicas.info.model
    [file] = Path(own).glob("*.safetensors")  # noqa: ASYNC240
    tensors = {name: -tensor for name, tensor in load_file(file).items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})

    async def both() -> set[tuple[int, ...]]:
        spec = CallSpec(prompt_token_ids=(*range(10, 60),), max_tokens=12, ignore_eos=True)
        engines = [replica.executor for replica in replicas.replicas]
        calls = [Call(Identity(f"w{n}", "w", "w"), spec) for n in range(2)]
        replies = [
            await last_reply(e.generate(c, stream=False))
            for e, c in zip(engines, calls, strict=True)
        ]
        return {reply.token_ids for reply in replies}

    [before] = await both()
    await replicas.update_weights(str(tmp_path), 1)
    [after] = await both()
    assert after != before
    await replicas.update_weights(own, 2, "wait")
    assert await both() == {before}


async def test_an_engine_that_waits_says_what_is_free_and_when_it_gives_up(
    nodes: LocalCluster, replicas: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines of ``replicas`` have the cluster's cores."""
    monkeypatch.setattr("agentrt.executors.ray.engine._PLACE_S", 0.5)
    late = RayEngine(EngineOptions(), Cluster(nodes.address, 2, memory=GIB))
    said: list[str] = []
    room = r"an engine needs 1 cores, 1\.0 GiB of one node; free on the cluster's 2 nodes together"
    room += ": 0 cores, "
    with pytest.raises(NoRoomError, match=rf"had room within 0\.5 s: {room}.* GiB; use fewer"):
        await late.start(said.append)
    await late.close()
    assert said[0] == "joining the cluster"
    assert re.fullmatch(rf"{NO_ROOM_YET}: {room}\S+ GiB; waiting for up to 0\.5 s", said[1])


async def test_more_engines_than_the_nodes_have_room_for(nodes: LocalCluster) -> None:
    many = RayEngine(EngineOptions(), Cluster(nodes.address, 3, memory=GIB))
    with pytest.raises(ConfigError, match=r"3 engines of at least 1 cores, .* do not fit"):
        await many.start(lambda message: None)
    await many.close()


async def test_a_core_and_then_a_node_are_killed_in_the_middle(
    nodes: LocalCluster,
    replicas: ReplicaSet,
    front: Frontend,
    audit: CallAudit,
    expected: list[list[str]],
) -> None:
    """1. An engine core dies on its node, whose actor says so: a new one takes its place.
    2. A node's raylet is killed, with its actor: its engine's calls run again on the other node.
    All answers are right each time, and no call runs or is delivered after its delivery."""

    def kill_core() -> None:
        os.kill(_pids(replicas)[0], signal.SIGKILL)

    def kill_node() -> None:
        nodes.kill_node(1)

    async with Runtime(audit.front(WithFront(Lent(replicas), front))) as runtime:
        for deaths, kill in ((1, kill_core), (2, kill_node)):
            telling = asyncio.create_task(PROGRAMS.run(runtime))
            async with asyncio.timeout(60):
                while not all(replica.calls for replica in replicas.replicas):
                    await asyncio.sleep(0.005)
            kill()
            assert await telling == expected
            async with asyncio.timeout(60):
                while sum(replica.deaths for replica in replicas.replicas) < deaths:
                    await asyncio.sleep(0.05)
            if kill is kill_core:
                async with asyncio.timeout(200):
                    await replicas.settled()
        assert len(runtime.table) == 0
    assert audit.faults == []
    assert sum(audit.delivered.values()) == 8 * PROGRAMS.count
    assert sum(replica.reruns for replica in replicas.replicas) > 0
