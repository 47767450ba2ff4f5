"""Our OpenAPI document against what the endpoint does, by schemathesis: bodies that fit it and bodies that don't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.toy_embedder import ToyEmbedder
from tests.serve.server import running, toy_served
from tpuctl.serve.openapi import openapi_document

EXAMPLES = os.environ.get("TPUCTL_TEST_EXAMPLES", "100")
# A body can fit the schema and yet ask for what doesn't go together, or for more tokens than there are: 400.
NOT_SAID_BY_SCHEMAS = "positive_data_acceptance"


def test_document_knows_the_names_of_the_models_and_every_route() -> None:
    with running() as served:
        document = served.client.get("/openapi.json").json()
        assert document == openapi_document(["toy", "toy:poet"])
        routes = {route.path.replace(":path", "") for route in served.front.app().routes}  # type: ignore[attr-defined]
    assert document["paths"].keys() == routes
    schemas = document["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["model"]["enum"] == ["toy", "toy:poet"]
    assert schemas["ChatBody"]["properties"]["store"]["enum"] == [None, False]


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder"])
def test_schemathesis_finds_nothing_that_the_document_does_not_say(tmp_path: Path, encoder: bool) -> None:
    embedder = ToyEmbedder() if encoder else None
    with running(served=toy_served(), embedder=embedder) as served:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
                *("--checks", "all", "--exclude-checks", NOT_SAID_BY_SCHEMAS),
                *("--max-examples", EXAMPLES, "--seed", "1", "--workers", "2", "--no-color", "--continue-on-failure"),
                *("--request-timeout", "60", "--max-response-time", "60"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        if not encoder:
            served.wait_until_idle(seconds=20)
