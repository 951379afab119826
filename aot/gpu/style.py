"""How a page looks, and the few lines of script that filter and sort its tables."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root { --ink: #1a202c; --paper: #ffffff; --soft: #edf2f7; --line: #cbd5e0; --accent: #2b6cb0; --bar: #bee3f8; color-scheme: light dark }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e8f0; --paper: #1a202c; --soft: #2d3748; --line: #4a5568; --accent: #63b3ed; --bar: #2c5282 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto; max-width: 76rem;
  padding: 0 1rem }
h1 { margin: 0 0 1rem } h2 { margin-top: 2.5rem } h3 { margin-bottom: .3rem; font-size: 1rem }
dl { display: flex; flex-wrap: wrap; gap: .8rem; margin: 0 }
dl div { background: var(--soft); border-radius: .4rem; padding: .5rem .9rem }
dt { font-size: .8rem; opacity: .75 } dd { margin: 0; font-weight: 600 }
/* A shadow at an edge says that there is more beyond it. */
.wide { overflow: auto; max-height: 34rem; border: 1px solid var(--line); border-radius: .4rem; background:
  linear-gradient(90deg, var(--paper) 1.5rem, transparent) local, linear-gradient(270deg, var(--paper) 1.5rem, transparent) local,
  linear-gradient(90deg, var(--line), transparent .8rem), linear-gradient(270deg, var(--line), transparent .8rem) }
.charts { display: flex; flex-wrap: wrap; gap: 0 2rem; margin-bottom: 1rem } .charts > div { flex: 1 1 32rem }
nav { position: sticky; top: 0; background: var(--paper); padding: .5rem 0; margin-top: 1rem; z-index: 2 }
nav a { color: var(--accent); margin-right: 1.2rem; text-decoration: none } nav a:hover { text-decoration: underline }
h2 { scroll-margin-top: 2.5rem }
details { margin: .8rem 0 } summary { cursor: pointer; color: var(--accent) }
.paper { background: #ffffff; border-radius: .4rem }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; min-width: 100% }
th { position: sticky; top: 0; background: var(--paper); text-align: left; vertical-align: bottom; white-space: normal }
th button { all: unset; cursor: pointer; font-weight: 600; padding: .3rem .6rem }
th[aria-sort] { color: var(--accent); box-shadow: inset 0 -2px var(--accent) }
th[aria-sort=ascending] button::after { content: " \\25b2" } th[aria-sort=descending] button::after { content: " \\25bc" }
th button:focus-visible, .wide:focus-visible { outline: 2px solid var(--accent) }
td { padding: .2rem .6rem; border-top: 1px solid var(--line) }
td.share { background: linear-gradient(90deg, var(--bar) var(--share), transparent var(--share)) }
td.number { text-align: right; font-variant-numeric: tabular-nums }
tbody tr:hover { background: var(--soft) }
input { font: inherit; padding: .3rem .6rem; width: 24rem; max-width: 100% }
svg.roofline { width: 100%; max-width: 46rem; font: 12px system-ui, sans-serif }
svg.roofline text { fill: var(--ink) } svg.roofline .grid { stroke: var(--line); stroke-width: .6 }
svg.roofline .roof { fill: none; stroke: #dd6b20; stroke-width: 2 }
svg.roofline circle { fill: var(--accent); fill-opacity: .65 } svg.roofline circle:hover { fill-opacity: 1 }
svg.bars { width: 100%; max-width: 46rem; font: 12px system-ui, sans-serif }
svg.bars text { fill: var(--ink) } svg.bars rect { fill: var(--accent) }
"""

SCRIPT = r"""
const rows = [...document.querySelectorAll('#variants tbody tr')];
const filter = document.getElementById('filter'), shown = document.getElementById('shown');
function apply() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    count += !row.hidden;
  }
  shown.textContent = count + ' of ' + rows.length;
}
filter.addEventListener('input', apply);
apply();
for (const table of document.querySelectorAll('table')) {
  table.querySelectorAll('th button').forEach((button, column) => button.addEventListener('click', () => {
    const head = button.parentNode, body = table.tBodies[0];
    const down = head.ariaSort !== 'ascending';
    for (const other of table.querySelectorAll('th')) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'ascending' : 'descending');
    const key = row => row.cells[column].textContent;
    const order = (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
    body.append(...[...body.rows].sort((a, b) => down ? order(a, b) : order(b, a)));
  }));
}
"""
