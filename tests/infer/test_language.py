"""Generate, score and classify against the plain forward pass, on a tiny random decoder in a model folder."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest
import sentencepiece

from tests.fakes.model_folders import CONFIG, write_model
from tests.fakes.tiny_engine import VOCAB, naive_greedy, naive_logits, tiny_engine
from tests.infer.inputs import Job, job, read, write
from tests.infer.plans import replica_plan, sampling_plan, task_plan
from tests.infer.word_folders import write_words
from tpuctl.infer.columns import ROW_ID
from tpuctl.infer.engine_loop import EngineLoop
from tpuctl.infer.generate import GenerateTask
from tpuctl.infer.language import Language
from tpuctl.infer.score import ClassifyTask, ScoreTask
from tpuctl.infer.tasks import task_of
from tpuctl.text.place import TokenizerRef

TEXTS = ["w1 w2 w3", "w4", "", "w8 w7 w6 w5 w4 w3 w2 w1 w158 w157 w20 w30 w40", "w3 w3 w3 w3"]


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Language:
    """The tiny engine's model with a tokenizer with a word for each of its ids."""
    folder = tmp_path_factory.mktemp("words")
    write_words(folder, VOCAB)
    tokenizer = TokenizerRef(name=str(folder), directory="", vocab_size=VOCAB).load()
    return Language(loop=EngineLoop(tiny_engine()), tokenizer=tokenizer, max_length=40)


def rows(texts: list[str | None]) -> pa.Table:
    count = len(texts)
    ids = [["f"] * count, [0] * count, list(range(count))]
    columns = [pa.array(values, field.type) for values, field in zip(ids, ROW_ID, strict=True)]
    return pa.table([*columns, pa.array(texts, pa.string())], names=[*ROW_ID.names, "text"])


def ids_of(language: Language, text: str) -> list[int]:
    ids: list[int] = language.tokenizer.encode(text).ids.tolist()
    return ids


def log_likelihood(ids: list[int], *, first: int = 1) -> float:
    logprobs = jax.nn.log_softmax(jnp.asarray(naive_logits(ids), jnp.float32), axis=-1)
    return float(sum(logprobs[at - 1, ids[at]] for at in range(first, len(ids))))


def test_generate_greedy_is_the_plain_forward_pass_and_bad_rows_are_apart(language: Language) -> None:
    task = GenerateTask(
        language=language, plan=task_plan(kind="generate", text_column="text", sampling=sampling_plan())
    )
    worked = task.work(rows([*TEXTS, None, "w1 " * 50]))
    assert worked.good.tolist() == [0, 1, 3, 4]
    assert dict(worked.bad) == {
        2: "the prompt has no tokens",
        5: "column 'text' is null",
        6: "50 tokens are more than 32",
    }
    for row, output in zip(worked.good, worked.columns["output"].to_pylist(), strict=True):
        assert ids_of(language, output) == naive_greedy(ids_of(language, TEXTS[row]), 8)


def test_generate_sampled_is_the_same_alone_and_in_company(language: Language) -> None:
    plan = task_plan(kind="generate", text_column="text", sampling=sampling_plan(temperature=1.0))
    task = GenerateTask(language=language, plan=plan)
    table = rows(["w1 w2 w3", "w4", "w1 w2 w3", "w3 w3 w3 w3"])
    together = task.work(table).columns["output"].to_pylist()
    alone = [task.work(table.slice(row, 1)).columns["output"][0].as_py() for row in range(4)]
    assert together == alone
    assert together[0] != together[2]


def test_score_is_the_sum_over_the_plain_forward_pass(language: Language) -> None:
    task = ScoreTask(language=language, plan=task_plan(kind="score", text_column="text"))
    worked = task.work(rows(TEXTS))
    assert dict(worked.bad) == {1: "one token has nothing to be told from", 2: "the prompt has no tokens"}
    wanted = [log_likelihood(ids_of(language, TEXTS[row])) for row in (0, 3, 4)]
    np.testing.assert_allclose(worked.columns["log_likelihood"].to_numpy(), wanted, rtol=1e-4)
    np.testing.assert_allclose(worked.columns["perplexity"].to_numpy()[0], np.exp(-wanted[0] / 2), rtol=1e-4)


def test_score_of_choices_is_of_their_tokens_alone_whether_the_recipes_or_each_rows_own(language: Language) -> None:
    choices = ("w2", "w3 w4")
    common = ScoreTask(language=language, plan=task_plan(kind="score", text_column="text", choices=choices))
    worked = common.work(rows(["w1 w2 w3", "w4"]))
    start = ids_of(language, "w1 w2 w3")
    wanted = [log_likelihood(start + ids_of(language, choice), first=len(start)) for choice in choices]
    np.testing.assert_allclose(worked.columns["log_likelihood"][0].as_py(), wanted, rtol=1e-4)
    assert worked.columns["scored_tokens"].to_pylist() == [[1, 2], [1, 2]]
    np.testing.assert_allclose(worked.columns["perplexity"][0].as_py()[1], np.exp(-wanted[1] / 2), rtol=1e-4)
    table = rows(["w1 w2 w3", "w4", "w5", "w6"])
    own = table.append_column("endings", pa.array([["w3 w4", "w2"], ["w9"], None, []], pa.list_(pa.large_string())))
    task = ScoreTask(language=language, plan=task_plan(kind="score", text_column="text", choices_column="endings"))
    worked = task.work(own)
    np.testing.assert_allclose(worked.columns["log_likelihood"][0].as_py(), wanted[::-1], rtol=1e-4)
    assert [len(row) for row in worked.columns["log_likelihood"].to_pylist()] == [2, 1]
    assert dict(worked.bad) == {
        2: "column 'endings' is null",
        3: "column 'endings' holds no choices, a list of texts",
    }


def test_classify_takes_the_likeliest_of_each_rows_own_endings(language: Language) -> None:
    table = rows(["w1 w2 w3", "w4"]).append_column("endings", pa.array([["w2", "w3 w4"], ["w9"]]))
    plan = task_plan(kind="classify", text_column="text", choices_column="endings")
    worked = ClassifyTask(language=language, plan=plan).work(table)
    first = worked.columns["choice_log_likelihoods"][0].as_py()
    assert worked.columns["choice"].to_pylist() == [["w2", "w3 w4"][int(np.argmax(first))], "w9"]


def test_classify_takes_the_likeliest_ending(language: Language) -> None:
    choices = ("w2", "w3 w4", "w5 w6 w7")
    task = ClassifyTask(language=language, plan=task_plan(kind="classify", text_column="text", choices=choices))
    worked = task.work(rows(["w1 w2 w3", "w4"]))
    for row, text in enumerate(["w1 w2 w3", "w4"]):
        start = ids_of(language, text)
        wanted = [log_likelihood(start + ids_of(language, choice), first=len(start)) for choice in choices]
        np.testing.assert_allclose(worked.columns["choice_log_likelihoods"][row].as_py(), wanted, rtol=1e-4)
        assert worked.columns["choice"][row].as_py() == choices[int(np.argmax(wanted))]


def test_engine_that_fails_fails_those_who_wait() -> None:
    from tpuctl.errors import JobFailedError

    def fail(*_):
        raise ValueError("broken")

    engine = SimpleNamespace(add_request=fail, step=fail, has_work=lambda: False)
    from tpuctl.engine.request import Request

    with pytest.raises(JobFailedError, match="broken"):
        EngineLoop(engine).ask([Request(request_id="x", prompt=(1,))])


@pytest.mark.parametrize("kind", ["generate", "score", pytest.param("classify", marks=pytest.mark.slow)])
def test_task_with_a_model_folder_runs_over_all_devices_and_a_job_is_finished(tmp_path, kind) -> None:
    write_model(tmp_path / "model")
    write_words(tmp_path / "model", CONFIG["vocab_size"])
    texts = [" ".join(f"w{(7 * row + at) % CONFIG['vocab_size']}" for at in range(2 + row % 5)) for row in range(20)]
    write(tmp_path / "in", {"a.parquet": pa.table({"text": texts})})
    changes = {"kind": kind, "text_column": "text", "max_length": 32}
    changes |= {"sampling": sampling_plan()} if kind == "generate" else {}
    changes |= {"choices": ("w1", "w2 w3")} if kind == "classify" else {}
    plan = job(tmp_path / "in", tmp_path / "out", **changes)
    task = task_of(
        plan.task, pa.schema([("text", pa.string())]), model=str(tmp_path / "model"), replica=replica_plan(tensor=2)
    )
    entry = Job(plan, task=task).run()
    assert (entry["rows"], entry["quarantined"]) == (20, 0)
    table = read(tmp_path / "out")
    assert table["text"].to_pylist() == texts
    new = {"generate": "output", "score": "perplexity", "classify": "choice"}[kind]
    assert table[new].null_count == 0


def test_language_ends_at_every_id_that_the_folder_names_and_knows_its_added_tokens(tmp_path, monkeypatch) -> None:
    write_model(tmp_path)
    write_words(tmp_path, CONFIG["vocab_size"] - 1, end=[2, 7])
    added = {str(CONFIG["vocab_size"] + row - 1): {"content": f"<{row}>", "special": True} for row in range(2)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added, "eos_token": "w5"}))
    asked = []
    monkeypatch.setattr("tpuctl.infer.language.create_engine", lambda *_, options, **__: asked.append(options))
    language = Language.of(task_plan(kind="generate", max_length=32), str(tmp_path), replica_plan())
    assert [(options.eos_ids, options.real_vocab) for options in asked] == [((5, 2, 7), 320)]
    plan = task_plan(text_column="text")
    prompts = language.prompts(rows(["w1 w2 w3", "w1 <0>", "w1 <1>"]), plan, room=dict.fromkeys(range(3), 8))
    assert prompts.ids == {0: [1, 2, 3], 1: [1, 319]}
    assert prompts.bad == {2: "token '<1>' is id 320, and the model has 320 rows"}


def test_language_reads_a_sentencepiece_model_where_that_is_all_there_is(tmp_path, monkeypatch) -> None:
    write_model(tmp_path)
    text = "the words of which the pieces are made, a few of them, and the same once more"
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text]), model_writer=made, model_type="bpe", vocab_size=60, minloglevel=2
    )
    (tmp_path / "tokenizer.model").write_bytes(made.getvalue())
    monkeypatch.setattr("tpuctl.infer.language.create_engine", lambda *_, **__: None)
    language = Language.of(task_plan(kind="score", max_length=128), str(tmp_path), replica_plan())
    reference = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    assert language.prompts(rows([text]), task_plan(text_column="text"), room={0: 1}).ids == {
        0: [1, *reference.encode(text)]
    }
