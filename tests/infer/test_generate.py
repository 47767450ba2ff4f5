"""Prompts of templates and conversations, parameters of rows, schemas and stops: by the real engine on bytes."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.fakes.model_folders import CONFIG, write_model
from tests.infer.inputs import Job, job, read, write
from tests.infer.plans import prompt_plan, replica_plan, sampling_plan, task_plan
from tpuctl.engine.engine import Engine
from tpuctl.engine.frames import Listener, PeerGoneError, connect
from tpuctl.engine.lockstep import Follower, Lockstep
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.runner import batch_sizes
from tpuctl.errors import DataError, HostLostError, UsageError
from tpuctl.infer.columns import ROW_ID
from tpuctl.infer.generate import GenerateTask
from tpuctl.infer.language import Language
from tpuctl.infer.task import Worked
from tpuctl.infer.tasks import model_identity, needed_columns
from tpuctl.modelspec import ModelSpec
from tpuctl.plan.infer_schema import TaskPlan

END = 256
TEMPLATE = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose tokens are bytes, with a chat template."""
    root = tmp_path_factory.mktemp("bytes")
    write_model(root, config=CONFIG | {"bos_token_id": END, "eos_token_id": END})
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(letters)} | {"</s>": END}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(root / "tokenizer.json"))
    (root / "chat_template.jinja").write_text(TEMPLATE)
    return root


CHAT = prompt_plan(messages_column="messages")


@pytest.fixture(scope="module")
def language(folder: Path) -> Language:
    return Language.of(generate(prompt=CHAT), str(folder), replica_plan())


def generate(**changes: Any) -> TaskPlan:
    sampling = {name: changes.pop(name) for name in list(changes) if name not in ("prompt", "text_column")}
    return task_plan(kind="generate", max_length=96, **changes, sampling=sampling_plan(**sampling))


def rows(**columns: Any) -> pa.Table:
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    count = len(next(iter(arrays.values())))
    ids = [["f"] * count, [0] * count, list(range(count))]
    named = {field.name: pa.array(values, field.type) for values, field in zip(ids, ROW_ID, strict=True)}
    return pa.table(named | arrays)


def prompts(language: Language, plan: TaskPlan, table: pa.Table, *, whole: bool = False) -> dict[int, str]:
    found = language.prompts(table, plan, room=dict.fromkeys(range(table.num_rows), 8), whole=whole)
    return {row: language.tokenizer.decode(ids) for row, ids in found.ids.items()} | found.bad


def outputs(language: Language, plan: TaskPlan, table: pa.Table) -> list[Any]:
    return done(language, plan, table).columns["output"].to_pylist()


def done(language: Language, plan: TaskPlan, table: pa.Table) -> Worked:
    return GenerateTask(language, plan).work(table)


def test_language_holds_int8_weights_and_fp8_pages_where_the_task_says_so(folder: Path) -> None:
    plan = task_plan(kind="score", max_length=96, weights="int8", kv_dtype="fp8")
    found = Language.of(plan, str(folder), replica_plan())
    assert found.loop.engine._runner._state["pages"].dtype.itemsize == 1  # type: ignore[attr-defined]
    weights = found.loop.engine._runner._params  # type: ignore[attr-defined]
    layer = weights["groups"][0]
    assert layer["attention"]["query"][0].values.matrix.dtype == layer["mlp"]["down"][0].values.dtype == "int8"
    assert weights["ends"]["embedding"].dtype == "float32"


def test_prompt_of_a_template_has_each_rows_values_and_braces_that_are_doubled(language: Language) -> None:
    table = rows(name=["ab", None, "x"], n=[1, 2, 3], tags=[["ü"], [], None], raw=pa.array([b"r"] * 3, pa.binary()))
    plan = generate(prompt=prompt_plan(text="{{{name}}} {n}"))
    assert prompts(language, plan, table) == {0: "{ab} 1", 1: "column 'name' is null", 2: "{x} 3"}
    listed = generate(prompt=prompt_plan(text="{tags}"))
    assert prompts(language, listed, table) == {0: '["ü"]', 1: "[]", 2: "column 'tags' is null"}
    raw = generate(prompt=prompt_plan(text="{raw}"))
    assert prompts(language, raw, table)[0] == "column 'raw' holds bytes, no text"
    assert needed_columns(plan) == ("name", "n")
    with pytest.raises(DataError, match="no column 'nome'"):
        prompts(language, generate(prompt=prompt_plan(text="{nome}")), table)


def test_prompt_of_user_and_system_is_the_chat_templates(language: Language) -> None:
    plan = generate(prompt=prompt_plan(user="Sum {a}", system="Be {tone}."))
    table = rows(a=["1+1", "2"], tone=["kind", None])
    assert prompts(language, plan, table) == {
        0: "<system>Be kind.<user>Sum 1+1<assistant>",
        1: "column 'tone' is null",
    }


def test_prompt_of_messages_as_structs_or_json_and_of_none_that_are(language: Language) -> None:
    said = [[{"role": "user", "content": "hi"}], [{"role": "boss", "content": "hi"}], [], None]
    wanted = {
        0: "<user>hi<assistant>",
        1: "column 'messages': message 0 has the role 'boss'",
        2: "column 'messages': no messages",
        3: "column 'messages' is null",
    }
    for values in (said, [None if value is None else json.dumps(value) for value in said]):
        found = prompts(language, generate(prompt=CHAT), rows(messages=values))
        assert {row: text.partition(";")[0] for row, text in found.items()} == wanted
    odd = prompts(language, generate(prompt=CHAT), rows(messages=["{", "3", '["x"]']))
    assert "no JSON" in odd[0]
    assert odd[1] == "column 'messages': expected a list, got 3"
    assert "message 0 is a str" in odd[2]


def test_prompt_of_a_whole_conversation_to_score_has_no_header_to_answer(language: Language) -> None:
    said = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]]
    assert prompts(language, generate(prompt=CHAT), rows(messages=said), whole=True) == {0: "<user>a<assistant>b"}


def test_generate_each_row_has_its_own_parameters_and_the_recipes_where_null(language: Language) -> None:
    table = rows(
        text=["abc", "abc", "abc", "abc", "abc"],
        how=[{"t": 1.5, "s": 7}, {"t": 1.5, "s": 7}, {"t": None, "s": None}, None, {"t": -1.0, "s": 1}],
        longest=[4.0, 6.0, None, 2.0, 3.0],
    )
    columns = {"temperature": "how.t", "seed": "how.s", "max_tokens": "longest"}
    worked = done(language, generate(text_column="text", columns=columns), table)
    assert worked.columns["output_tokens"].to_pylist() == [4, 6, 8, 2]
    text = worked.columns["output"].to_pylist()
    greedy = outputs(language, generate(text_column="text"), rows(text=["abc"]))[0]
    drawn = outputs(language, generate(text_column="text", columns=columns), table.slice(1, 1))[0]
    assert (text[1], text[2], text[3]) == (drawn, greedy, greedy[: len(text[3])])
    assert text[1].startswith(text[0].rstrip("\ufffd"))
    assert text[1] != greedy
    assert [row for row, _ in worked.bad] == [4]
    assert "temperature must be a finite number at least 0" in worked.bad[0][1]
    assert needed_columns(generate(text_column="text", columns=columns)) == ("text", "how", "longest")
    with pytest.raises(DataError, match="has no field 'u'"):
        done(language, generate(text_column="text", columns={"seed": "how.u"}), table)


def test_generate_answers_fit_the_recipes_schema_or_a_rows_own(language: Language) -> None:
    schemas = [None, '{"enum": [17]}', "{", '{"type": "nothing"}']
    plan = generate(
        text_column="text", json_schema='{"enum": ["yes", "no"]}', temperature=1.0, columns={"json_schema": "form"}
    )
    worked = done(language, plan, rows(text=["a", "b", "c", "d"], form=schemas))
    first, second = (json.loads(text) for text in worked.columns["output"].to_pylist())
    assert first in ("yes", "no")
    assert second == 17
    assert worked.columns["finish_reason"].to_pylist() == ["stop", "stop"]
    assert [row for row, _ in worked.bad] == [2, 3]
    with pytest.raises(UsageError, match=r"sampling\.json_schema"):
        GenerateTask(language, generate(text_column="text", json_schema='{"type": "nothing"}'))


def test_generate_several_samples_are_lists_each_of_its_own_seed(language: Language) -> None:
    plan = generate(text_column="text", n=3, temperature=1.5)
    worked = done(language, plan, rows(text=["abc", "abd"]))
    assert worked.columns.schema.field("output").type == pa.list_(pa.string())
    assert [len(set(row)) for row in worked.columns["output"].to_pylist()] == [3, 3]
    assert worked.columns["output_tokens"].to_pylist()[0] == [8, 8, 8]
    empty = done(language, plan, rows(text=pa.array([], pa.string())))
    assert empty.columns.schema == worked.columns.schema


@pytest.mark.parametrize("n", [1, 2])
def test_generate_ends_before_a_stop_text_and_leaves_the_others_alone(language: Language, n: int) -> None:
    drawing = {"n": n, "temperature": 1.0, "max_tokens": 24}
    table = rows(text=["abc", "q", "xyzzy"])
    free = [row if n > 1 else [row] for row in outputs(language, generate(text_column="text", **drawing), table)]
    stop = free[0][-1][3:5]
    worked = done(language, generate(text_column="text", stop=(stop,), **drawing), table)
    cut = [row if n > 1 else [row] for row in worked.columns["output"].to_pylist()]
    assert cut == [[text.partition(stop)[0] for text in row] for row in free]
    reasons = worked.columns["finish_reason"].to_pylist()[0]
    assert (reasons if n > 1 else [reasons])[-1] == "stop"
    tokens = worked.columns["output_tokens"].to_pylist()[0]
    assert (tokens if n > 1 else [tokens])[-1] < 24


def test_generate_job_of_conversations_carries_every_column_and_names_bad_rows(
    tmp_path: Path, language, folder
) -> None:
    said = [[{"role": "user", "content": f"say {n}"}] for n in range(9)] + [None]
    table = pa.table({"id": list(range(10)), "messages": said, "heat": [0.0] * 10})
    write(tmp_path / "in", {"a.parquet": table})
    task = generate(prompt=CHAT, columns={"temperature": "heat"})
    plan = job(
        tmp_path / "in", tmp_path / "out", kind="generate", prompt=CHAT, text_column=None, sampling=task.sampling
    )
    entry = Job(plan, task=GenerateTask(language, plan.task)).run()
    assert (entry["rows"], entry["quarantined"]) == (9, 1)
    found = read(tmp_path / "out")
    assert found["messages"].to_pylist() == said[:9]
    assert found["output"].null_count == 0


def test_generate_over_hosts_that_are_led_is_that_of_one_until_one_is_lost(language: Language, folder: Path) -> None:
    plan, leads = generate(text_column="text", temperature=1.0), list[Lockstep]()

    def led(spec: ModelSpec, options: EngineOptions) -> Engine:
        """A host in a thread of its own, which has the weights of the other engine."""
        listener = Listener("127.0.0.1", word="the gang's")
        runner = language.loop.engine._runner

        def follow() -> None:
            channel = connect(listener.address, number=0, word="the gang's", timeout_seconds=20)
            with suppress(PeerGoneError):
                Follower(channel, speaks=True).run(runner, lambda *_: pytest.fail("nobody asks for it"))

        threading.Thread(target=follow, daemon=True).start()
        leads.append(Lockstep(listener.accept(1, go_on=lambda: True), step_seconds=60, start_seconds=60))
        listener.close()
        leads[0].wait_ready(lambda **_: None)
        return Engine(leads[0], sizes=batch_sizes(spec, options), options=options)

    table = rows(text=["abc", "q", "xyzzy"])
    alone = done(language, plan, table).columns
    task = GenerateTask.of(plan, str(folder), replica_plan(), engine=led)
    assert task.work(table).columns == alone
    language.loop.engine.forget_prefixes()  # the pages are the same
    leads[0].lose("its node is gone")
    with pytest.raises(HostLostError, match="its node is gone"):
        task.work(table)
    leads[0].close()


def test_identity_of_a_model_knows_its_chat_template(tmp_path: Path) -> None:
    write_model(tmp_path)
    before = model_identity(str(tmp_path), generate(prompt=CHAT))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    beside = model_identity(str(tmp_path), generate(prompt=CHAT))
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages }}")
    named = model_identity(str(tmp_path), generate(prompt=prompt_plan(messages_column="m", chat_template=str(own))))
    assert len({before, beside, named}) == 3
