"""Where we render a folder of templates otherwise than transformers did: see ``template_cases``.

python -m tests.text.compare_templates FOLDER REFERENCE
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.text.template_cases import CASES, SPECIAL, templates
from tpuctl.text.template import ChatTemplate, ChatTemplateError, Conversation

GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}


def conversation(case: dict[str, Any]) -> Conversation:
    variables = {key: value for key, value in case.items() if key not in GIVEN}
    given = {key: case[key] for key in ("messages", "tools", "documents") if key in case}
    return Conversation(**given, variables=variables)


def options(case: dict[str, Any]) -> dict[str, bool]:
    return {key: case[key] for key in ("add_generation_prompt", "continue_final_message") if key in case}


def main(folder: Path, reference: Path) -> None:
    rendered = json.loads(reference.read_text(encoding="utf-8"))["rendered"]
    found: Counter[str] = Counter()
    for name, source in templates(folder).items():
        template = ChatTemplate(source, special_tokens=SPECIAL)
        for case, given in CASES.items():
            verdict = _verdict(template, given, rendered[f"{name}: {case}"])
            found[verdict] += 1
            if verdict not in ("same", "both refuse"):
                print(f"{name}: {case}: {verdict}")
    print(", ".join(f"{number} {verdict}" for verdict, number in found.most_common()))


def _verdict(template: ChatTemplate, given: dict[str, Any], expected: dict[str, Any]) -> str:
    try:
        ours = template.render(conversation(given), **options(given))
    except ChatTemplateError as error:
        return "both refuse" if "error" in expected else f"ours alone refuses: {error}"
    if "error" in expected:
        return "transformers alone refuses"
    spans = [list(span) for span in ours.generated]
    same = ours.text == expected["text"] and ("continue_final_message" in given or spans == expected["spans"])
    return "same" if same else "another text"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
