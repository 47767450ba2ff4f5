from __future__ import annotations

import pytest

from tpuctl.masking import Masker
from tpuctl.runs.events import event, format_line
from tpuctl.submit.lines import Line, LineReader, known_secrets


def host_line(prefix: str, host: int) -> str:
    return f"{prefix} {format_line(event('host', host=host, hosts=2, pid=1, ip='x'))}"


@pytest.mark.parametrize(
    "prefix",
    [
        "(RayTrainWorker pid=7)",
        "(RayTrainWorker pid=7, ip=10.0.0.3)",
        "\x1b[36m(RayTrainWorker pid=7, ip=10.0.0.3)\x1b[0m",
        "(pid=7, ip=fd00::1)",
        "(ns:MyActor(a=1) pid=7)",
    ],
)
def test_read_learns_the_host_of_a_prefix_from_its_event(prefix: str) -> None:
    reader = LineReader()
    assert reader.read(f"{prefix} before").host is None
    assert reader.read(host_line(prefix, 1)).host == 1
    assert reader.read(f"{prefix} after  (pid=9) x") == Line(text="after  (pid=9) x", host=1)


def test_read_tells_equal_pids_on_two_machines_apart() -> None:
    reader = LineReader()
    reader.read(host_line("(W pid=7)", 0))
    reader.read(host_line("(W pid=7, ip=10.0.0.3)", 1))
    assert [reader.read(f"(W pid=7{ip}) x").host for ip in ("", ", ip=10.0.0.3", ", ip=10.0.0.4")] == [0, 1, None]


def test_read_of_a_new_attempts_worker_replaces_the_old_host() -> None:
    reader = LineReader()
    reader.read(host_line("(W pid=7)", 0))
    reader.read(host_line("(W pid=7)", 1))
    assert reader.read("(W pid=7) x").host == 1


@pytest.mark.parametrize("text", ["", "(not a prefix) x", "(pid=x) y", "@tpuctl {broken", "x (W pid=7) y"])
def test_read_of_other_lines_leaves_them_whole(text: str) -> None:
    assert LineReader().read(text) == Line(text=text)


@pytest.mark.parametrize(
    "line",
    ["hf_test123", "{'HF_TOKEN': 'hf_test123'}", "https://user:hf_test123@host", "xhf_test123x", "a%2Fb%3D", "a/b="],
)
def test_masker_hides_a_secret_however_it_stands(line: str) -> None:
    masked = Masker(["hf_test123", "a/b="])(line)
    assert "hf_test123" not in masked
    assert "***" in masked


def test_masker_hides_each_line_of_a_key_and_the_longest_first() -> None:
    assert Masker(["-----BEGIN\nabcdef\n", "token", "token-long"])("abcdef token-long token") == "*** *** ***"


def test_masker_of_a_short_secret_leaves_words_alone() -> None:
    assert Masker(["ab", "", " "])("ab cab ab. about") == "*** cab ***. about"


def test_known_secrets_go_by_the_variables_name() -> None:
    environ = {"HF_TOKEN": "a", "WANDB_API_KEY": "b", "DB_PASSWORD": "c", "PATH": "d", "TOKENIZERS_PARALLELISM": "e"}
    assert sorted(known_secrets({**environ, "EMPTY_TOKEN": ""})) == ["a", "b", "c"]
