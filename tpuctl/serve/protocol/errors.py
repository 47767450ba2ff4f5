"""Errors as OpenAI's clients expect them: ``{"error": {"message", "type", "param", "code"}}`` and an HTTP status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from tpuctl.engine.request import RequestError
from tpuctl.errors import TpuctlError

INVALID = "invalid_request_error"
SERVER = "server_error"

# The engine's names of what a request of ours calls otherwise.
_PARAMS = {"stop_ids": "stop_token_ids"}


class ApiError(TpuctlError):
    """A request that is answered with an error.

    Attributes:
        status: The HTTP status.
        param: The field at fault, as a path such as ``messages[0].content``.
        code: A word for programs.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        message: str,
        *,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = SERVER if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else INVALID
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def of_engine(error: RequestError) -> ApiError:
    """A request that the engine refuses, under the name that the field has here."""
    return ApiError(error.message, param=_PARAMS.get(error.param, error.param), code="invalid_value")


def no_such_model(name: str, names: Sequence[str]) -> ApiError:
    """A model that is not among those there are."""
    message = f"there is no model {name!r} here, but {', '.join(names)}"
    return ApiError(message, status=HTTPStatus.NOT_FOUND, param="model", code="model_not_found")


def too_long(prompt_tokens: int, output_tokens: int, *, max_length: int, param: str) -> ApiError:
    """More tokens than the context has."""
    asked = f"{prompt_tokens} in the prompt" + (f" and {output_tokens} to be made" if output_tokens else "")
    return ApiError(
        f"this model's context length is {max_length} tokens, and the request has {asked}",
        param=param,
        code="context_length_exceeded",
    )


def overloaded(waiting: int) -> ApiError:
    """More requests than are let in."""
    return ApiError(
        f"{waiting} requests are being served or wait already: try again later",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        code="overloaded",
        headers={"Retry-After": "1"},
    )


def too_fast(rate: float, *, retry_seconds: int) -> ApiError:
    """More requests of one key in a time than it may make."""
    return ApiError(
        f"this key may make {rate:g} requests a second: try again later",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        code="rate_limit_exceeded",
        headers={"Retry-After": str(retry_seconds)},
    )


def too_many_at_once(most: int) -> ApiError:
    """More requests of one key under way than it may have."""
    return ApiError(
        f"this key has {most} requests under way, which is as many as it may: wait for one to end",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        code="rate_limit_exceeded",
        headers={"Retry-After": "1"},
    )


def timed_out(seconds: float) -> ApiError:
    """A request whose time is over before its answer was complete."""
    return ApiError(
        f"the answer was not complete after {seconds:g} s", status=HTTPStatus.REQUEST_TIMEOUT, code="request_timeout"
    )


def engine_failed() -> ApiError:
    """The engine failed under this request; what it was stands in the server's log, not in the answer."""
    return ApiError(
        "the engine failed while it worked on this request; others are still served",
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        code="engine_failed",
    )


def unavailable(reason: str) -> ApiError:
    """Nothing can be served now."""
    return ApiError(reason, status=HTTPStatus.SERVICE_UNAVAILABLE, code="unavailable", headers={"Retry-After": "5"})
