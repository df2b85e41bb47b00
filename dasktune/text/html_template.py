"""Fill HTML templates with values, all of which are escaped."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


def render_html(template: str, **values: object) -> str:
    """Fill a Jinja template. Each value is escaped, unless :func:`html_part` has returned it.

    The lines of the template are joined without the white space around them.

    Examples
    --------
    >>> item = html_part("<li>{{ name }}</li>", name="<b>")
    >>> render_html("<ul>{{ item }}</ul>", item=item)
    '<ul><li>&lt;b&gt;</li></ul>'
    """
    return _compiled(template).render(values)


def html_part(template: str, **values: object) -> Markup:
    """Fill a template whose HTML is a value of another template."""
    from markupsafe import Markup

    return Markup(render_html(template, **values))


@cache
def _compiled(template: str) -> Template:
    # Imported here: it takes 0.1 s, and workers show no HTML.
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string("".join(map(str.strip, template.splitlines())))
