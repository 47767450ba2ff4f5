"""Texts to vectors over HTTP: the official client, batches that requests share, and faults."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from tests.fakes.toy_embedder import ToyEmbedder
from tests.serve.server import Running, running, toy_served
from tpuctl.nn.embedder import Embedder, EmbedderOptions
from tpuctl.serve.embedding import Embedding
from tpuctl.serve.protocol import ApiError

TINY = Path(__file__).parents[1] / "infer" / "tiny_bert"


@pytest.fixture
def embedder() -> ToyEmbedder:
    return ToyEmbedder()


@pytest.fixture
def served(embedder: ToyEmbedder) -> Iterator[Running]:
    with running(embedder=embedder) as found:
        yield found


def test_official_client_gets_the_vectors_in_order_and_the_counts(served: Running) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    found = client.embeddings.create(model="toy", input=["ab", "c"])  # asks for base64 by itself
    assert [item.embedding for item in found.data] == [[97 / 8, 98 / 8, 0, 0], [99 / 8, 0, 0, 0]]
    assert [item.index for item in found.data] == [0, 1]
    assert found.usage.prompt_tokens == found.usage.total_tokens == 3
    plain = client.embeddings.create(model="toy", input=[[97, 98], [99]], encoding_format="float")
    assert [item.embedding for item in plain.data] == [item.embedding for item in found.data]


def test_base64_is_little_endian_float32(served: Running) -> None:
    body = {"model": "toy", "input": "abc", "encoding_format": "base64"}
    text = served.client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == [97 / 8, 98 / 8, 99 / 8, 0]


def test_encoder_makes_no_text_and_says_so_by_name(served: Running) -> None:
    for path, extra in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        response = served.client.post(path, json={"model": "toy", **extra})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
    assert served.client.get("/v1/models").json()["data"][0]["id"] == "toy"
    assert served.client.post("/tokenize", json={"prompt": "ab"}).json()["tokens"] == [97, 98]
    assert served.client.get("/ready").status_code == 200
    assert 'path="/v1/completions",status="400"' in served.client.get("/metrics").text


def test_text_longer_than_the_model_takes_is_refused() -> None:
    with running(embedder=ToyEmbedder(), served=toy_served(max_length=4)) as served:
        response = served.client.post("/v1/embeddings", json={"model": "toy", "input": ["a", "abcde"]})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"


def test_batch_that_fails_fails_its_requests_alone(served: Running, embedder: ToyEmbedder) -> None:
    embedder.fail_next = 1
    assert served.client.post("/v1/embeddings", json={"model": "toy", "input": "a"}).status_code == 500
    assert served.client.post("/v1/embeddings", json={"model": "toy", "input": "a"}).status_code == 200


def test_requests_that_come_while_one_computes_share_a_batch_and_those_that_left_are_dropped() -> None:
    embedder = ToyEmbedder()

    async def run() -> list[float]:
        embedding = Embedding(embedder, served=toy_served(), max_waiting=6, timeout_seconds=5)
        embedding.start()
        embedder.gate.clear()
        first = asyncio.create_task(embedding.vectors([(8,)]))
        while not embedding.figures()["running"]:
            await asyncio.sleep(0)
        others = [asyncio.create_task(embedding.vectors([(8 * number,), (0,)])) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await embedding.vectors([(1,)])
        assert refused.value.status == 429
        others[1].cancel()
        await asyncio.sleep(0)
        embedder.gate.set()
        found = await asyncio.gather(first, others[0], others[2])
        await embedding.close()
        return [float(vectors[0, 0]) for vectors in found]

    assert asyncio.run(run()) == [1, 2, 4]
    assert embedder.batches == [1, 4]


def test_request_whose_time_is_over_is_told_so(served: Running, embedder: ToyEmbedder) -> None:
    embedder.gate.clear()
    header = {"X-Request-Timeout-Seconds": "0.05"}
    response = served.client.post("/v1/embeddings", json={"model": "toy", "input": "a"}, headers=header)
    assert response.status_code == 408
    embedder.gate.set()


def test_client_that_leaves_does_not_hold_up_others(served: Running, embedder: ToyEmbedder) -> None:
    embedder.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        served.client.post("/v1/embeddings", json={"model": "toy", "input": "a"}, timeout=0.05)
    embedder.gate.set()
    assert served.client.post("/v1/embeddings", json={"model": "toy", "input": "a"}).status_code == 200


def test_real_encoder_gives_each_text_the_vector_it_has_alone() -> None:
    options = EmbedderOptions(pooling="mean", normalise=True, max_length=32, batch_rows=4)
    embedder = Embedder(str(TINY), options)
    texts = [tuple(range(2, 2 + length)) for length in (3, 20, 5)]
    together = embedder.vectors(texts)
    assert together.shape == (3, embedder.size)
    np.testing.assert_array_equal(together, np.concatenate([embedder.vectors([text]) for text in texts]))
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert embedder.lengths == (16, 32)
