"""A score table as one HTML page that needs no other file, for light and dark screens and paper."""

from collections.abc import Mapping
from html import escape

from albert_core.scores.plot import COLOURS, plot
from albert_core.scores.table import ScoreTable
from albert_core.scores.text import Rows, notes, percent, sections

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --card: #fff; --ink: #1d2433;
  --soft: #6b7280; --faint: #e8e6e1; --constant: #cfc8bb; --model: #2454c5; --unproven: #c2660a; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --card: #1b1f27; --ink: #e9ebf0;
  --soft: #9aa3b2; --faint: #2c323d; --constant: #434b59; --model: #7aa2ff; --unproven: #ffab57; } }
body { margin: 0 auto; max-width: 1080px; padding: 40px 28px; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
header { display: flex; justify-content: space-between; align-items: end; gap: 32px; }
h1 { font-size: 30px; line-height: 1.15; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; }
.average { text-align: right; }
.average b { display: block; font-size: 44px; line-height: 1; }
header p, th, footer { color: var(--soft); font-size: 13px; }
section { background: var(--card); border: 1px solid var(--faint); border-radius: 12px;
  padding: 22px 26px; margin: 20px 0; overflow-x: auto; break-inside: avoid; }
svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; white-space: nowrap; }
th, td { text-align: right; padding: 6px 0 6px 16px; border-bottom: 1px solid var(--faint); }
th { font-weight: 500; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
@media print { body { background: #fff; } }
"""


def as_page(table: ScoreTable, provenance: Mapping[str, str] | None = None) -> str:
    """Return the page.

    Args:
        table: what it shows.
        provenance: where the numbers are from, by name, to say at the foot.
    """
    said = [escape(note) for note in notes(table)]
    said += [
        f"{escape(name)}: <code>{escape(value)}</code>"
        for name, value in (provenance or {}).items()
    ]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Scores of {escape(table.model)}</title><style>{_STYLE}</style></head>",
        f"<body>{_header(table)}",
        f"<section><h2>Every task, every seed</h2>{_plot(table)}</section>",
        *(
            f"<section><h2>{escape(title)}</h2>{_in_html(rows)}</section>"
            for title, rows in sections(table)
        ),
        f"<footer>{''.join(f'<p>{note}</p>' for note in said)}</footer></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _header(table: ScoreTable) -> str:
    seeds = sorted({scores.num_seeds for scores in table.tasks.values()})
    counts = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    about = f"Tasks: {len(table.tasks)}. Seeds of each: {counts}. Scored on dev."
    average = ""
    if table.average is not None:
        average = f"<b>{percent(table.average)}</b>the paper's Avg of five tasks"
    return (
        f"<header><div><h1>{escape(table.model)}</h1><p>{about}</p></div>"
        f'<p class="average">{average}</p></header>'
    )


def _plot(table: ScoreTable) -> str:
    """Return the plot as an SVG element, in the colours of the page's style."""
    file = plot(table, "svg").decode()
    svg = file[file.index("<svg") :]  # without the prolog of an XML file
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return f'<div role="img" aria-label="Scores with their 95 % intervals">{svg}</div>'


def _in_html(rows: Rows) -> str:
    lines: list[str] = []
    for row in rows:
        cell = "td" if lines else "th"
        cells = "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
