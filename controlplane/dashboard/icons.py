"""Inline SVG: line icons on a 16 px grid, evidence marks on a 12 px grid, the product's mark."""

from __future__ import annotations

ICONS = {
    "home": '<path d="M2.5 7.5 8 3l5.5 4.5M4 6.5V13h8V6.5"/>',
    "fleet": '<rect x="2.5" y="2.5" width="4.5" height="4.5" rx=".8"/>'
    '<rect x="9" y="2.5" width="4.5" height="4.5" rx=".8"/>'
    '<rect x="2.5" y="9" width="4.5" height="4.5" rx=".8"/><rect x="9" y="9" width="4.5" height="4.5" rx=".8"/>',
    "workloads": '<path d="M2 11.5c2 0 2-7 4-7s2 9 4 9 2-5 4-5"/>',
    "memory": '<rect x="2.5" y="4.5" width="11" height="7" rx="1"/>'
    '<path d="M5.5 4.5v7M10.5 4.5v7M5 13.5v-2M8 13.5v-2M11 13.5v-2"/>',
    "plans": '<path d="M3 13.5h10M4.5 13.5V9M8 13.5V3M11.5 13.5V6.5"/>',
    "deployments": '<rect x="2.5" y="3" width="11" height="4" rx="1"/>'
    '<rect x="2.5" y="9" width="11" height="4" rx="1"/>'
    '<path d="M5 5h.01M5 11h.01"/>',
    "validation": '<path d="M2.5 13.5v-11M2.5 13.5h11M5 11l7-7"/><circle cx="6" cy="7.5" r=".8"/>'
    '<circle cx="10" cy="8.5" r=".8"/>',
    "rules": '<path d="M2.5 5.5h11v5h-11zM5 5.5v2M7.5 5.5v2.5M10 5.5v2"/>',
    "jobs": '<circle cx="8" cy="8" r="5.5"/><path d="M8 5v3.2l2 1.3"/>',
    "admin": '<circle cx="8" cy="8" r="2"/>'
    '<path d="M8 2.5v2M8 11.5v2M2.5 8h2M11.5 8h2M4.1 4.1l1.4 1.4M10.5 10.5l1.4 1.4'
    'M4.1 11.9l1.4-1.4M10.5 5.5l1.4-1.4"/>',
    "help": '<circle cx="8" cy="8" r="5.5"/><path d="M6.4 6.4a1.6 1.6 0 1 1 2.3 1.5c-.5.3-.7.6-.7 1.1M8 11h.01"/>',
    "ok": '<circle cx="8" cy="8" r="5.5"/><path d="m5.6 8.2 1.6 1.6 3.2-3.4"/>',
    "attention": '<path d="M8 2.8 14 13H2zM8 6.8v2.8M8 11.3h.01"/>',
    "failed": '<circle cx="8" cy="8" r="5.5"/><path d="m6 6 4 4M10 6l-4 4"/>',
    "busy": '<path d="M13.5 8A5.5 5.5 0 1 1 8 2.5"/>',
    "no": '<circle cx="8" cy="8" r="5.5"/><path d="m6 6 4 4M10 6l-4 4"/>',
    "idle": '<circle cx="8" cy="8" r="5.5"/><path d="M5.5 8h5"/>',
    "waiting": '<circle cx="8" cy="8" r="5.5" stroke-dasharray="2.2 2.2"/>',
    "plus": '<path d="M8 3.5v9M3.5 8h9"/>',
    "menu": '<path d="M2.5 4.5h11M2.5 8h11M2.5 11.5h11"/>',
    "theme": '<circle cx="8" cy="8" r="5.5"/>'
    '<path d="M8 2.5v11A5.5 5.5 0 0 0 8 2.5" class="solid" fill="currentColor"/>',
    "close": '<path d="m4.5 4.5 7 7M11.5 4.5l-7 7"/>',
    "info": '<circle cx="8" cy="8" r="5.5"/><path d="M8 7.5V11M8 5.2h.01"/>',
    "out": '<path d="M6.5 3H3.5v10h3M9.5 5.5 12 8l-2.5 2.5M12 8H6.5"/>',
}

EVIDENCE_MARKS = {
    "measured": '<circle class="solid" cx="6" cy="6" r="5.2"/>',
    "calibrated": '<circle cx="6" cy="6" r="4.6"/><circle class="solid" cx="6" cy="6" r="2"/>',
    "silicon": '<circle cx="6" cy="6" r="4.6"/>',
    "extrapolated": '<path d="M6 1.4a4.6 4.6 0 0 1 0 9.2"/>',
    "roofline": '<circle cx="6" cy="6" r="4.6" stroke-dasharray="2.1 1.5"/>',
    "emulated": '<circle cx="6" cy="6" r="4.8" class="hatch"/>'
    '<path class="hatch" d="M1.9 8.3 8.3 1.9M3.2 10 10 3.2M5.8 10.8l5-5"/>',
}

# A load line on a hull: how heavily a ship may be laden.
LOGO = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="7.5" class="mark-line"/>'
    '<path d="M1.5 12h21" class="mark-line"/><path d="M7.1 13.9h9.8a5.3 5.3 0 0 1-9.8 0Z" class="mark-fill"/></svg>'
)


def icon(name: str) -> str:
    """A 16 px line icon; raises KeyError for an unknown name."""
    return f'<svg class="icon" viewBox="0 0 16 16" aria-hidden="true">{ICONS[name]}</svg>'


def evidence_mark(evidence: str) -> str:
    """The 12 px mark of one kind of evidence; raises KeyError for an unknown kind."""
    return f'<svg viewBox="0 0 12 12" aria-hidden="true">{EVIDENCE_MARKS[evidence]}</svg>'
