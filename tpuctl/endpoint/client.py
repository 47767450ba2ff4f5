"""Talking to an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from tpuctl.errors import ClusterError, UsageError

KEY_VARIABLES = ("TPUCTL_API_KEY", "OPENAI_API_KEY")
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 600.0
_TIMEOUT = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)


class RefusedError(UsageError):
    """The endpoint answered with an error of its own. ``param`` is the field it names."""

    def __init__(self, message: str, *, status: int, param: str | None = None) -> None:
        super().__init__(f"the endpoint answered {status}: {message}")
        self.status = status
        self.param = param


class Endpoint:
    """One endpoint. Its address may end in ``/v1`` or not."""

    def __init__(self, url: str, *, key: str | None) -> None:
        """For an address such as ``http://host:8000``.

        Raises:
            UsageError: It is none.
        """
        base = url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is no address of an endpoint", hint="write http://host:port")
        self.url = base
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    @classmethod
    def from_environ(cls, url: str, environ: Mapping[str, str] = os.environ) -> Endpoint:
        """With the key that the environment has, if it has one."""
        return cls(url, key=next((environ[name] for name in KEY_VARIABLES if environ.get(name)), None))

    def models(self) -> list[str]:
        """The names of its models.

        Raises:
            ClusterError: It can't be reached.
            RefusedError: It refuses.
        """
        with self._reached(), httpx.Client(base_url=self.url, headers=self._headers, timeout=_TIMEOUT) as client:
            response = client.get("/v1/models")
            return [str(model["id"]) for model in _document(response)["data"]]

    def model(self, asked: str | None) -> str:
        """The model asked for, or the first it has."""
        return asked if asked is not None else self.models()[0]

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed answer; raises as ``models`` does."""
        with (
            self._reached(),
            httpx.Client(base_url=self.url, headers=self._headers, timeout=_TIMEOUT) as client,
            client.stream("POST", path, json={**body, "stream": True}) as response,
        ):
            if response.is_error:
                response.read()
            _check(response)
            for line in response.iter_lines():
                if (chunk := _chunk(line)) is not None:
                    yield chunk

    @asynccontextmanager
    async def session(self, *, connections: int) -> AsyncIterator[Session]:
        """For many requests at once."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        options: dict[str, Any] = {"base_url": self.url, "headers": self._headers, "timeout": _TIMEOUT}
        async with httpx.AsyncClient(limits=limits, **options) as client:
            yield Session(client)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise ClusterError(f"{self.url} can't be reached: {error}", hint="is it up? `tpuctl serve ls`") from error


class Session:
    """Many requests at once over one pool of connections."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a streamed answer.

        Raises:
            RefusedError: The endpoint answers with an error.
            httpx.TransportError: It can't be reached.
        """
        async with self._client.stream("POST", path, json={**body, "stream": True}) as response:
            if response.is_error:
                await response.aread()
            _check(response)
            async for line in response.aiter_lines():
                if (chunk := _chunk(line)) is not None:
                    yield chunk


def _chunk(line: str) -> dict[str, Any] | None:
    """The chunk of a line of server-sent events; None for what is between chunks."""
    field, _, value = line.partition(":")
    if field != "data" or value.strip() == "[DONE]":
        return None
    chunk: dict[str, Any] = json.loads(value)
    if "error" in chunk:
        raise RefusedError(str(chunk["error"].get("message")), status=200, param=chunk["error"].get("param"))
    return chunk


def _document(response: httpx.Response) -> dict[str, Any]:
    _check(response)
    document: dict[str, Any] = response.json()
    return document


def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        error = response.json()["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, param = response.text[:200] or response.reason_phrase, None
    raise RefusedError(message, status=response.status_code, param=param)
