"""``docs/check_pages.py`` notices what a build of the documentation has lost."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = """# A page

Text with a [link](other.md).

## A `name` and a [link](other.md)

```python
print("<&>")
```

```{figure} a.png
:alt: not shown as text
```
"""

BUILT = """<html><head><title>A page</title><script>var x = "lost";</script></head><body>
<nav>menu</nav><h1>A page<a href="#a-page">#</a></h1><p>Text with a <a href="other.html">link</a>.</p>
<h2>A <code>name</code> and a <a href="other.html">link</a></h2>
<pre><span>print</span><span>(</span><span>&quot;&lt;&amp;&gt;&quot;</span><span>)</span></pre></body></html>
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "check_pages.py"
    spec = importlib.util.spec_from_file_location("check_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DOCS", tmp_path)
    (tmp_path / "page.md").write_text(SOURCE)
    (tmp_path / "_build").mkdir()
    (tmp_path / "_build" / "page.md").write_text("# Not a source\n")
    return module


def test_a_page_with_all_headings_and_code_lacks_nothing(module, tmp_path, capsys):
    (tmp_path / "_build" / "page.html").write_text(BUILT)
    assert module.main(tmp_path / "_build") == 0
    assert capsys.readouterr().out == ("documentation: 1 pages are built with all their headings and code\n")


@pytest.mark.parametrize(
    ("built", "lost"),
    [
        (None, "the whole page"),
        # As when Sphinx's own page has the name of ours.
        ("<html><body><h1>Search</h1></body></html>", "# A page"),
        (BUILT.replace("<h2>", "<nav>").replace("</h2>", "</nav>"), "## A `name` and a link"),
        (BUILT.replace("<span>print</span>", ""), 'print("<&>")'),
    ],
)
def test_what_is_missing_is_named(module, tmp_path, capsys, built, lost):
    if built is not None:
        (tmp_path / "_build" / "page.html").write_text(built)
    assert module.main(tmp_path / "_build") == 1
    assert f"page.md: {lost!r} is not in the built page" in capsys.readouterr().out
