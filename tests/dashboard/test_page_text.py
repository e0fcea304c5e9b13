"""The answer as text and code, escaped; how much of it is asked for; fences as an independent parser sees them."""

import random

import pytest
from markdown_it import MarkdownIt
from test_page_live import generate, note, submit, tokens

from mkviz.dashboard.theme import asset

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

ANSWER = """Look:
```python
if a < b & c:
    print('<img src=x>')
```
<b>done</b> ``no fence``"""


@pytest.fixture
def page(shared_page):
    yield shared_page
    shared_page.fill("input[type=number]", "256")


def test_code_is_set_apart_and_no_markup_obeyed(page):
    generate(page, "say " + ANSWER)
    note(page, r"^done \(length\)")
    answer = page.locator(".turn.assistant").last
    assert answer.text_content() == ANSWER  # nothing is lost, the fences are only hidden
    assert "`" not in answer.inner_text().replace("``no fence``", "")
    assert answer.locator("pre").count() == 1
    assert "".join(answer.locator("pre .code").all_text_contents()) == "if a < b & c:\n    print('<img src=x>')\n"
    assert "".join(answer.locator("pre .language").all_text_contents()) == "python\n"
    assert answer.locator("p").all_text_contents() == ["Look:\n", "<b>done</b> ``no fence``"]
    assert answer.locator("img, b").count() == 0
    steps = [int(s.get_attribute("data-step")) for s in tokens(page).all()]
    assert len(set(steps)) == -(-len(ANSWER) // 5) and steps == sorted(steps)  # every token still leads to its step


def test_as_many_tokens_as_asked_for(page):
    generate(page, most=3)
    note(page, r"^done \(length\) · 3 tokens")
    assert tokens(page).count() == 3
    page.reload()
    page.wait_for_selector("body[data-mkviz=ready]", state="attached")
    assert page.input_value("input[type=number]") == "3"
    submit(page, "none of it", most=0)
    assert page.locator("input[type=number]:invalid").count() == 1
    assert page.input_value("textarea") == "none of it"  # it was not taken


TEXTS = (
    "", "plain", "a\n```\nb\n```\nc\n```js\nd\n```", "```python\nopen", "````\n```\ninner\n```\n````\nafter", "```\n\n```",
    "x ```\nno\n```", "```a`b\nno fence", "  ```c\nx\n  ```\n", "```\na\n``` b\n```\n", "``\n```\n`````\nend",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_fences_are_where_a_markdown_parser_sees_them(page, text):
    """However the text is divided into tokens, and whichever state was shown before."""
    fences = [t for t in MarkdownIt().parse(text) if t.type == "fence"]
    for seed in range(3):
        choose, pieces, at = random.Random(seed), [], 0
        while at < len(text):
            length = choose.randint(1, 4)
            pieces.append([text[at : at + length], len(pieces)])
            at += length
        blocks = page.evaluate(
            f"""(pieces) => {{ {asset("blocks.js")}
                const div = document.createElement("div")
                for (let n = 0; n <= pieces.length; n++) showBlocks(div, pieces.slice(0, n))
                return [...div.children].map((el) => [el.tagName, ...["code", "language"].map(
                    (kind) => [...el.querySelectorAll("." + kind)].map((s) => s.textContent).join("")), el.textContent])
            }}""",
            pieces,
        )
        assert "".join(whole for *_, whole in blocks) == text
        code = [(code.rstrip("\n"), language.strip()) for tag, code, language, _ in blocks if tag == "PRE"]
        assert code == [(fence.content.rstrip("\n"), fence.info) for fence in fences]
