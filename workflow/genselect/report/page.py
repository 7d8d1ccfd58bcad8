"""The page: one HTML file with the verdict first, every picture, and what a reader needs to trust them.

The pictures are inside it, so that the file can be mailed; links lead to the files beside it. No script, nothing is loaded.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import jinja2
from docutils.core import publish_parts
from markupsafe import Markup

from genselect.errors import GenselectError
from genselect.evaluation.conclusion import size
from genselect.formats import write_text
from genselect.plan.report import Picture

HERE = Path(__file__).parent
CAPTIONS = HERE / "captions"


def render_page(facts: dict[str, Any], figures: Path, output: Path) -> None:
    """Write ``output``.

    Args:
        facts: Of :func:`genselect.report.facts.collect_facts`.
        figures: Folder of the pictures.
        output: ``index.html``; the folder of the pictures lies below its own.

    Raises:
        GenselectError: A picture or a caption is missing.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=_percent, points=lambda share: f"{size(share)} points", short=lambda text: text[:12]
    )
    environment.globals.update(
        picture=lambda one, folder="": _picture(one, figures, folder, output.parent),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
    )
    write_text(output, environment.get_template("page.html.jinja").render(**facts))


def caption(name: str) -> Markup:
    """The caption of a picture as HTML, the same text as in Snakemake's report.

    Raises:
        GenselectError: It is missing.
    """
    path = CAPTIONS / f"{name}.rst"
    if not path.exists():
        raise GenselectError(
            f"{path}: the picture {name} has no caption", "Write one; Snakemake's report shows it too."
        )
    settings = {"report_level": 2, "halt_level": 3, "file_insertion_enabled": False, "raw_enabled": False}
    parts = publish_parts(path.read_text(encoding="utf-8"), writer="html5", settings_overrides=settings)
    return Markup(parts["body"])


def _picture(one: Picture, figures: Path, folder: str, home: Path) -> Markup:
    svg = figures / folder / f"{one.name}.svg"
    if not svg.exists():
        raise GenselectError(f"{svg}: the picture is missing", "Let `snakemake report` draw it.")
    link = svg.relative_to(home).as_posix()
    coded = base64.b64encode(svg.read_bytes()).decode()
    words = caption(one.name)
    return Markup(
        '<figure><h4>{title}</h4><img src="data:image/svg+xml;base64,{coded}" alt="{title}. {alt}">'
        '<figcaption>{words}<p class="files"><a href="{link}">SVG</a> <a href="{png}">PNG</a></p></figcaption></figure>'
    ).format(title=one.title, coded=coded, alt=words.striptags(), words=words, link=link, png=link[:-3] + "png")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{size(share)} %"
