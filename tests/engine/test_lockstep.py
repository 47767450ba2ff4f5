"""Steps on several processes at once: what crosses the wire, the same tokens as from one, what a loss looks like."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.fakes.follower_host import start_followers
from tests.fakes.tiny_engine import ADAPTERS, SIZES, SPEC, ask, naive_greedy, naive_logits, run, tiny_engine, tokens_of
from tpuctl.engine.engine import Engine
from tpuctl.engine.frames import Channel, Frame, Listener, PeerGoneError, connect, pack, unpack
from tpuctl.engine.lockstep import Lockstep
from tpuctl.engine.options import EngineOptions, buckets
from tpuctl.engine.runner import batch_sizes
from tpuctl.errors import HostLostError

WORD = "only-the-gang-knows"


def test_frame_crosses_with_its_arrays() -> None:
    arrays = {
        "plain": np.arange(6, dtype=np.int32).reshape(2, 3),
        "empty": np.zeros((0, 4), np.int32),
        "flag": np.True_,
        "words": np.asarray([1, 2**32 - 1], np.uint32),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }
    sent = Frame(kind="launch", number=7, values={"layout": arrays, "name": "x", "none": None, "few": [1, 2]})
    data = pack(sent)
    header = int.from_bytes(data[:4])
    found = unpack(data[12 : 12 + header], data[12 + header :])
    assert (found.kind, found.number, found.values["name"], found.values["none"]) == ("launch", 7, "x", None)
    for name, array in arrays.items():
        got = found.values["layout"][name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert np.array_equal(got, array)


def test_only_who_knows_the_word_gets_in_and_hosts_come_in_their_order() -> None:
    listener = Listener("127.0.0.1", word=WORD)
    with ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept, 2, go_on=lambda: True)
        stranger = connect(listener.address, number=0, word="guessed", timeout_seconds=5)
        with pytest.raises(PeerGoneError):
            stranger.receive()
        noise = socket.create_connection(listener.address)
        noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
        hosts = [connect(listener.address, number=number, word=WORD, timeout_seconds=5) for number in (1, 0)]
        channels = accepted.result(timeout=20)
    channels[0].send(Frame(kind="to", number=0, values={}))
    channels[1].send(Frame(kind="to", number=1, values={}))
    assert [host.receive().number for host in hosts] == [1, 0]
    for channel in (*channels, *hosts, stranger):
        channel.close()
    noise.close()
    listener.close()


def test_waiting_for_hosts_ends_with_the_names_of_those_that_are_missing() -> None:
    listener = Listener("127.0.0.1", word=WORD)
    host = connect(listener.address, number=1, word=WORD, timeout_seconds=5)
    asked = iter([True, False])
    with pytest.raises(TimeoutError, match="joined 1 of 3 hosts: missing hosts 0, 2"):
        listener.accept(3, go_on=lambda: next(asked))
    host.close()
    listener.close()


@pytest.fixture
def silent() -> Iterator[tuple[Lockstep, list[Channel]]]:
    """A leader whose hosts take everything and say nothing."""
    listener = Listener("127.0.0.1", word=WORD)
    hosts = [connect(listener.address, number=number, word=WORD, timeout_seconds=5) for number in range(2)]
    lead = Lockstep(listener.accept(2, go_on=lambda: True), step_seconds=0.2, start_seconds=20)
    listener.close()
    yield lead, hosts
    lead.close()
    for host in hosts:
        host.close()


def test_host_that_is_silent_in_a_step_is_lost(silent: tuple[Lockstep, list[Channel]]) -> None:
    lead, _ = silent
    with pytest.raises(HostLostError, match=r"has not answered for 0\.2 s"):
        lead.fetch(1, explained=False)
    assert "has not answered" in lead.lost.result(timeout=0)


def test_host_that_ends_is_named_even_if_another_one_answers(silent: tuple[Lockstep, list[Channel]]) -> None:
    lead, hosts = silent
    hosts[0].send(Frame(kind="made", number=1, values={"tokens": np.zeros(1, np.int32)}))
    hosts[1].close()
    with pytest.raises(HostLostError, match="host 1 is gone"):
        lead.fetch(2, explained=False)


def test_reason_from_another_thread_wakes_who_waits(silent: tuple[Lockstep, list[Channel]]) -> None:
    lead, _ = silent
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lead.forward, np.zeros(1, np.int32), 0)
        time.sleep(0.05)
        lead.lose("its node is gone")
        with pytest.raises(HostLostError, match="its node is gone"):
            waiting.result(timeout=5)


class Gang:
    """Two processes with a device each, led from here."""

    def __init__(self) -> None:
        listener = Listener("127.0.0.1", word=WORD)
        self.processes: list[subprocess.Popen[str]] = start_followers(listener.address, word=WORD, processes=2)
        alive = lambda: all(process.poll() is None for process in self.processes)  # noqa: E731
        self.lead = Lockstep(listener.accept(2, go_on=alive), step_seconds=60, start_seconds=120)
        listener.close()
        self.lead.wait_ready(lambda **_: None)
        options = EngineOptions(**SIZES, adapters=ADAPTERS)
        self.engine = Engine(self.lead, sizes=batch_sizes(SPEC, options), options=options)


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    made = Gang()
    try:
        yield made
    finally:
        made.lead.close()
        for process in made.processes:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_two_processes_compile_what_one_does(gang: Gang) -> None:
    assert [shape.bucket for shape in gang.engine.warm_up()] == buckets(gang.engine.options)


@pytest.mark.slow
def test_two_processes_say_what_one_does(gang: Gang) -> None:
    asked = [
        ask([3, 1, 4, 1, 5] * 7, name="greedy", logprobs=2),
        ask([9, 2, 6], name="seeded", temperature=0.9, seed=7, top_k=20, frequency_penalty=0.5, max_tokens=12),
        ask([5, 3, 5, 8, 9, 7, 9], name="explained", prompt_logprobs=1, logit_bias={4: 3.0}),
        ask([2, 7, 1, 8], name="several", temperature=1.0, seed=1, n=3),
    ]
    one, two = run(tiny_engine(), *asked), run(gang.engine, *asked)
    for request in asked:
        for index in range(request.sampling.n):
            name = request.request_id
            assert tokens_of(two[name], index=index) == tokens_of(one[name], index=index), name
    assert tokens_of(two["greedy"]) == naive_greedy([3, 1, 4, 1, 5] * 7, 8)
    for name, field in (("greedy", "logprobs"), ("explained", "prompt_logprobs")):
        told = [[entry for output in outputs[name] for entry in getattr(output, field)] for outputs in (one, two)]
        assert told[0]
        assert [entry.token for entry in told[1]] == [entry.token for entry in told[0]]
        assert np.allclose([e.logprob for e in told[1]], [e.logprob for e in told[0]], atol=1e-4)


@pytest.mark.slow
def test_two_processes_with_drafts_say_what_one_says_without(gang: Gang) -> None:
    options = replace(gang.engine.options, speculate=4)
    engine = Engine(gang.lead, sizes=batch_sizes(SPEC, options), options=options)
    few = {"logit_bias": {7: 100.0, 90: 100.0}, "max_tokens": 40}
    asked = [ask([i, 9], name=str(i), temperature=0.5 * i, seed=i, **few) for i in range(4)]
    one, two = run(tiny_engine(), *asked), run(engine, *asked)
    gang.engine.forget_prefixes()  # the pages are the same
    assert {name: tokens_of(found) for name, found in two.items()} == {
        name: tokens_of(found) for name, found in one.items()
    }
    assert engine.stats().accepted_tokens > 0


@pytest.mark.slow
def test_plain_forward_pass_over_both_is_that_of_one(gang: Gang) -> None:
    tokens = np.arange(20, dtype=np.int32)
    for index, name in enumerate((None, *ADAPTERS.names)):
        wanted = naive_logits(tokens.tolist(), adapter=name)
        assert np.allclose(gang.lead.forward(tokens, index).logits, wanted, atol=1e-3)


@pytest.mark.slow
def test_two_processes_say_what_the_model_with_each_adapter_merged_says(gang: Gang) -> None:
    prompt = [3, 1, 4, 1, 5] * 7
    names = (None, *ADAPTERS.names)
    outputs = run(gang.engine, *[replace(ask(prompt, name=str(name)), adapter=name) for name in names])
    for name in names:
        assert tokens_of(outputs[str(name)]) == naive_greedy(prompt, 8, adapter=name)


@pytest.mark.slow
def test_process_that_is_killed_is_noticed_at_once(gang: Gang) -> None:
    began = time.monotonic()
    threading.Timer(0.1, gang.processes[1].kill).start()
    with pytest.raises(HostLostError, match="host 1 is gone"):
        run(gang.engine, *[ask([1, 2, 3], name=str(i), max_tokens=80) for i in range(40)])
    assert time.monotonic() - began < 10
