"""A score table as one HTML page that needs no other file, for light and dark screens and paper."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from albert_core.scores.figure import as_svg
from albert_core.scores.table import ModelScores, ScoreTable
from albert_core.scores.text import detail_rows, glue_rows, notes, paper_rows, percent

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --card: #ffffff; --ink: #1d2433;
  --soft: #6b7280; --faint: #e8e6e1; --constant: #ded9d0; --constant-end: #9a9184;
  --model-0: #2454c5; --model-1: #0f8a6c; --model-2: #a23b9b; --model-3: #5c6b00;
  --unproven: #c2660a; --published: #1d2433; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --card: #1b1f27; --ink: #e9ebf0;
  --soft: #9aa3b2; --faint: #2c323d; --constant: #343b47; --constant-end: #78808e;
  --model-0: #7aa2ff; --model-1: #4fd1ac; --model-2: #e08ad8; --model-3: #c6d64a;
  --unproven: #ffab57; --published: #e9ebf0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui,
  -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 44px 28px 60px; }
header { display: flex; justify-content: space-between; align-items: flex-end; gap: 32px;
  flex-wrap: wrap; margin-bottom: 26px; }
.over { color: var(--soft); font-size: 12px; letter-spacing: .09em; text-transform: uppercase;
  margin: 0 0 4px; }
h1 { font-size: 30px; line-height: 1.15; letter-spacing: -.015em; margin: 0; font-weight: 650;
  overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; font-weight: 620; }
.sub { color: var(--soft); margin: 6px 0 0; }
.averages { display: flex; gap: 34px; flex-wrap: wrap; }
.average { text-align: right; }
.average b { display: block; font-size: 44px; line-height: 1; letter-spacing: -.03em;
  font-weight: 650; font-variant-numeric: tabular-nums; }
.average span { color: var(--soft); font-size: 13px; }
section { background: var(--card); border: 1px solid var(--faint); border-radius: 14px;
  padding: 22px 26px 20px; margin-bottom: 20px; overflow-x: auto; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 22px; color: var(--soft); font-size: 13px;
  margin: 0 0 14px; padding: 0; list-style: none; }
.legend li { display: flex; align-items: center; gap: 7px; }
.legend svg { width: 30px; height: 16px; overflow: visible; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 13px; }
svg .title { font-size: 15.5px; font-weight: 600; }
svg .about, svg .metric, svg .tick { fill: var(--soft); font-size: 12px; }
svg .tick { text-anchor: middle; }
svg .score { font-size: 19px; font-weight: 640; font-variant-numeric: tabular-nums; }
svg .grid, svg .track { stroke: var(--faint); stroke-width: 1; }
svg .grid { stroke-dasharray: 2 4; }
svg .zero { stroke: var(--constant-end); stroke-width: 1; }
svg .constant { fill: var(--constant); }
svg .constant-end { stroke: var(--constant-end); stroke-width: 2; }
svg .whisker { stroke: currentColor; stroke-width: 2; stroke-linecap: round; }
svg .seed { fill: currentColor; opacity: .42; }
svg .median { fill: currentColor; stroke: var(--card); stroke-width: 2; }
svg .published { fill: none; stroke: var(--published); stroke-width: 1.6; }
.model-0 { color: var(--model-0); } .model-1 { color: var(--model-1); }
.model-2 { color: var(--model-2); } .model-3 { color: var(--model-3); }
.unproven { color: var(--unproven); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 14px; }
th { color: var(--soft); font-weight: 500; font-size: 12.5px; text-align: right;
  border-bottom: 1px solid var(--faint); padding: 0 0 7px 16px; white-space: nowrap; }
td { text-align: right; padding: 7px 0 7px 16px; border-bottom: 1px solid var(--faint);
  white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:first-child { font-weight: 600; }
tr.more td { border-bottom: 0; }
tr.published td, tr.published td:first-child { color: var(--soft); font-weight: 400; }
.notes { color: var(--soft); font-size: 13.5px; }
.notes p { margin: 0 0 8px; }
.notes code { font-size: 12px; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
_LEGEND = """
<ul class="legend">
<li class="model-0"><svg viewBox="0 0 30 16"><line class="whisker" x1="2" x2="28" y1="8" y2="8"/>
<circle class="median" cx="15" cy="8" r="6"/></svg><span>median run, 95 % interval</span></li>
<li class="model-0"><svg viewBox="0 0 30 16"><circle class="seed" cx="9" cy="6" r="3.6"/>
<circle class="seed" cx="20" cy="10" r="3.6"/></svg><span>every seed</span></li>
<li><svg viewBox="0 0 30 16"><rect class="constant" x="0" y="2" width="22" height="12"/>
<line class="constant-end" x1="22" x2="22" y1="0" y2="16"/></svg>
<span>best constant answer</span></li>
<li class="unproven"><svg viewBox="0 0 30 16"><circle class="median" cx="15" cy="8" r="6"/></svg>
<span>not surely above it</span></li>
{published}
</ul>
"""
_PUBLISHED_LEGEND = """<li><svg viewBox="0 0 30 16"><path class="published"
d="M9.5 3.5h11l-5.5 9z"/></svg><span>{names}</span></li>"""


def as_page(table: ScoreTable, provenance: Mapping[str, str] | None = None) -> str:
    """Return the page.

    Args:
        table: what it shows.
        provenance: what to say at its foot of where the numbers are from, by name.
    """
    title = ", ".join(model.name for model in table.models)
    sections = [
        _section("Every task, every seed", _legend(table) + as_svg(table)),
        *(
            _section(heading, _table(rows, {row.name for row in table.published}))
            for heading, rows in (
                ("In the paper's columns", paper_rows(table)),
                ("GLUE and own tasks", glue_rows(table)),
            )
            if rows
        ),
        *(
            _section(_detail_heading(table, model), _table(detail_rows(model), ()))
            for model in table.models
        ),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Scores of {escape(title)}</title><style>{_STYLE}</style></head>",
            f"<body><main>{_header(table, title)}",
            *sections,
            _foot(table, provenance or {}),
            "</main></body></html>",
            "",
        ]
    )


def _header(table: ScoreTable, title: str) -> str:
    num_tasks = len(table.tasks)
    seeds = sorted({len(s.seeds) for model in table.models for s in model.tasks.values()})
    counts = " to ".join(str(number) for number in dict.fromkeys((seeds[0], seeds[-1])))
    about = (
        f"{num_tasks} task{'s' if num_tasks != 1 else ''}, "
        f"{counts} seed{'s' if counts != '1' else ''} each, scored on dev"
    )
    averages = "".join(_average(model, len(table.models) > 1) for model in table.models)
    averages = f'<div class="averages">{averages}</div>' if averages else ""
    return (
        '<header><div><p class="over">Downstream evaluation</p>'
        f'<h1>{escape(title)}</h1><p class="sub">{about}</p></div>{averages}</header>'
    )


def _average(model: ModelScores, has_name: bool) -> str:
    if model.average is None:
        return ""
    what = f"Avg of {model.name}" if has_name else "the paper's Avg of five tasks"
    return f'<div class="average"><b>{percent(model.average)}</b><span>{escape(what)}</span></div>'


def _legend(table: ScoreTable) -> str:
    names = ", ".join(escape(row.name) for row in table.published)
    return _LEGEND.format(published=_PUBLISHED_LEGEND.format(names=names) if names else "")


def _detail_heading(table: ScoreTable, model: ModelScores) -> str:
    return f"{model.name}, task by task" if len(table.models) > 1 else "Task by task"


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>"


def _table(rows: Sequence[tuple[str, ...]], published: Iterable[str]) -> str:
    header, *others = rows
    lines = [_row("th", header, "")]
    for number, row in enumerate(others):
        is_published = any(row[0].startswith(f"{name} (") for name in published)
        goes_on = number + 1 < len(others) and not others[number + 1][0]
        kind = "published" if is_published else "more" if goes_on else ""
        lines.append(_row("td", row, kind))
    return f"<table>{''.join(lines)}</table>"


def _row(cell: str, row: Iterable[str], kind: str) -> str:
    cells = "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row)
    return f'<tr class="{kind}">{cells}</tr>' if kind else f"<tr>{cells}</tr>"


def _foot(table: ScoreTable, provenance: Mapping[str, str]) -> str:
    paragraphs = [f"<p>{escape(note)}</p>" for note in notes(table)]
    paragraphs += [
        f"<p>{escape(name)}: <code>{escape(value)}</code></p>" for name, value in provenance.items()
    ]
    return f'<div class="notes">{"".join(paragraphs)}</div>'
