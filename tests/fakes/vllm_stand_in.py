"""In place of ``ray.serve.llm``: an application of Ray Serve that says what it was told, with no engine behind it."""

from __future__ import annotations

from typing import Any

from ray import serve
from starlette.requests import Request


class StandIn:
    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    async def __call__(self, request: Request) -> dict[str, Any]:
        return {"path": request.url.path, "config": self._config}


def build_openai_app(args: dict[str, Any]) -> Any:
    (config,) = args["llm_configs"]
    return serve.deployment(StandIn, name=config["model_loading_config"]["model_id"]).bind(config)


def build_broken_app(args: dict[str, Any]) -> Any:
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("no chips here")

    return serve.deployment(Broken, max_constructor_retry_count=1).bind()
