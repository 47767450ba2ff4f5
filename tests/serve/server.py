"""A served toy engine on a port of this machine, for clients of any kind."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import httpx

from tests.fakes.toy_engine import ToyEngine
from tpuctl.serve.border import HttpOptions
from tpuctl.serve.embedding import EmbedderLike
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.grammars import grammar_maker
from tpuctl.serve.http import Front
from tpuctl.serve.served import Served
from tpuctl.serve.server import Loaded, LoadedEncoder, Server, ServerOptions
from tpuctl.text import ByteTokenizer
from tpuctl.text.chat import Chat
from tpuctl.text.template import ChatTemplate

# Certificates of tests are signed by nobody.
_UNVERIFIED = ssl.create_default_context()
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('a system message comes first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }} <tool_call>{% endif %}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    "{% if reasoning_effort %}effort: {{ reasoning_effort }}{% endif %}"
    "{% for d in documents or [] %}{{ d.text }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def toy_served(*, template: str | None = TEMPLATE, max_length: int = 256) -> Served:
    tokenizer = ByteTokenizer()
    chat = None
    if template is not None:
        chat = Chat(ChatTemplate(template, special_tokens=tokenizer.special.names), tokenizer=tokenizer)
    return Served(
        name="toy",
        tokenizer=tokenizer,
        chat=chat,
        max_length=max_length,
        vocab_size=257,
        created=1,
        adapters={"toy:poet": "/adapters/poet"},
    )


@cache
def toy_grammars() -> MakeGrammar:
    return grammar_maker(None, tokenizer=ByteTokenizer())


@dataclass
class Running:
    url: str
    engine: ToyEngine
    server: Server
    front: Front
    client: httpx.Client

    def wait_until_idle(self, *, seconds: float = 5.0) -> None:
        """Until no sequence runs or waits and every page is free; fails after that time."""
        deadline = time.monotonic() + seconds
        while True:
            stats = self.engine.stats()
            serving = self.front.serving
            assert serving is not None
            if not (stats.running or stats.waiting or serving.bridge.in_flight):
                assert stats.free_pages == stats.num_pages
                return
            assert time.monotonic() < deadline, f"still at work: {stats}, {serving.bridge.in_flight} in flight"
            time.sleep(0.005)


@contextmanager
def running(
    engine: ToyEngine | None = None,
    *,
    served: Served | None = None,
    http: HttpOptions | None = None,
    options: ServerOptions | None = None,
    embedder: EmbedderLike | None = None,
) -> Iterator[Running]:
    """A served engine; or an encoder in its place."""
    engine = engine or ToyEngine()
    front = Front(http or HttpOptions())
    server = Server(front, options or ServerOptions(port=0, drain_seconds=0))
    ready = threading.Event()
    loaded: Loaded | LoadedEncoder = Loaded(engine=engine, served=served or toy_served(), make_grammar=toy_grammars())
    if embedder is not None:
        loaded = LoadedEncoder(embedder=embedder, served=served or toy_served())
    thread = threading.Thread(target=lambda: asyncio.run(server.run(lambda: loaded, on_ready=ready.set)))
    thread.start()
    try:
        assert ready.wait(10)
        scheme = "http" if options is None or options.tls is None else "https"
        url = f"{scheme}://127.0.0.1:{server.port}"
        _wait_for(url)
        with httpx.Client(base_url=url, timeout=30, verify=_UNVERIFIED) as client:
            yield Running(url=url, engine=engine, server=server, front=front, client=client)
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive()


def _wait_for(url: str) -> None:
    for _ in range(200):
        try:
            httpx.get(f"{url}/ready", verify=_UNVERIFIED)
            return
        except httpx.TransportError:
            time.sleep(0.01)
    raise AssertionError(f"{url} does not answer")
