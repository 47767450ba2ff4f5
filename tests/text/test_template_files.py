from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpuctl.errors import DataError
from tpuctl.text.template_files import choose_template, find_templates


def write_config(folder: Path, template: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def test_find_templates_reads_the_config_in_both_its_forms(tmp_path: Path) -> None:
    assert find_templates(tmp_path) == {}
    write_config(tmp_path, "one")
    assert find_templates(tmp_path) == {"default": "one"}
    write_config(tmp_path, [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}])
    assert find_templates(tmp_path) == {"default": "one", "tool_use": "two"}


def test_find_templates_takes_files_before_the_config(tmp_path: Path) -> None:
    write_config(tmp_path, "old")
    (tmp_path / "chat_template.jinja").write_text("new")
    assert find_templates(tmp_path) == {"default": "new"}
    (tmp_path / "chat_templates").mkdir()
    (tmp_path / "chat_templates" / "rag.jinja").write_text("third")
    assert find_templates(tmp_path) == {"default": "new", "rag": "third"}


@pytest.mark.parametrize("template", [5, [{"name": "default"}], ["x"], {"default": 1}])
def test_find_templates_of_a_config_that_has_none_names_the_file(tmp_path: Path, template: Any) -> None:
    write_config(tmp_path, template)
    with pytest.raises(DataError, match=r"tokenizer_config\.json: chat_template is neither"):
        find_templates(tmp_path)


def test_choose_template_prefers_the_one_for_tools_where_there_are_tools() -> None:
    both = {"default": "one", "tool_use": "two"}
    assert choose_template(both) == "one"
    assert choose_template(both, with_tools=True) == "two"
    assert choose_template({"default": "one"}, with_tools=True) == "one"
    assert choose_template(both, name="tool_use") == "two"


def test_choose_template_where_there_is_none_says_so() -> None:
    with pytest.raises(DataError, match="has no chat template"):
        choose_template({})
    with pytest.raises(DataError, match="'default' among rag"):
        choose_template({"rag": "x"})
    with pytest.raises(DataError, match="'other' among default"):
        choose_template({"default": "x"}, name="other")
