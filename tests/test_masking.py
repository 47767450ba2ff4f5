"""Secrets lose their values on both sides: in what is printed here, and in what a job's driver passes on."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.fakes.plans import a_plan
from tpuctl.cli.options import Output
from tpuctl.cli.start import Asked, command_line
from tpuctl.masking import MaskedStream, Masker
from tpuctl.plan.schema import plan_dumps


def test_masked_stream_writes_lines_without_the_secrets_and_keeps_the_rest() -> None:
    inner = io.StringIO()
    stream = MaskedStream(inner, Masker(["hf_test123"]))
    print("(RayTrainWorker pid=7) token=hf_test123 done", file=stream)
    assert inner.getvalue() == "(RayTrainWorker pid=7) token=*** done\n"
    stream.writelines(["hf_test123\n", "plain\n"])
    assert inner.getvalue().endswith("***\nplain\n")
    assert (stream.writable(), stream.readable(), stream.isatty()) == (True, False, False)


def test_driver_whose_entrypoint_prints_a_secret_prints_stars(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text("def main(plan):\n    print(plan.job.secrets['HF_TOKEN'])\n    return 0\n")
    plan = replace(a_plan(secrets={"HF_TOKEN": "hf_test123"}), entrypoint="leaky")
    (tmp_path / "plan.json").write_text(plan_dumps(plan))
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(tmp_path)])
    command = [sys.executable, "-m", "tpuctl.entrypoints", "plan.json"]
    out = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    ).stdout
    assert out == "***\n"
    assert json.loads((tmp_path / "plan.json").read_text())["job"]["secrets"] == {"HF_TOKEN": "hf_test123"}


def test_command_to_go_on_with_names_the_cluster_and_no_secret() -> None:
    overrides = ["job.secrets.HF_TOKEN=hf_test123", "job.env.API_KEY=k", "train.steps=5"]
    asked = Asked(
        verb="train",
        kinds=(),
        recipe=Path("my r.toml"),
        overrides=overrides,
        cluster="http://head:8265",
        wait=None,
        detach=False,
        dry_run=False,
        output=Output.text,
        quiet=False,
    )
    line = command_line(asked)
    assert line == (
        "tpuctl train 'my r.toml' --set 'job.secrets.HF_TOKEN=***' --set 'job.env.API_KEY=***' "
        "--set train.steps=5 --cluster http://head:8265"
    )
