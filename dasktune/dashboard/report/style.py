"""Styles of the pages of the report and of the server."""

from __future__ import annotations

from typing import Final

__all__ = ["BODY", "CARD", "TABS"]

_FONT: Final = "Inter, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

#: Style of the page.
BODY: Final = f"""
 html body {{ background: #f6f8fa; margin: 0 auto; padding: 20px 28px; max-width: 1500px;
  font-family: {_FONT}; }}
"""

#: Style of the tabs.
TABS: Final = f"""
:host {{ font-family: {_FONT}; }}
.bk-header {{ border-bottom: 1px solid #d0d7de; margin-top: 14px; font-size: 14px; }}
.bk-tab {{ padding: 8px 14px; color: #57606a; border: none; }}
.bk-tab.bk-active {{ color: #24292f; font-weight: 650; background: transparent; border: none;
 border-bottom: 3px solid #0072b2; }}
"""

#: Style of the cards on the tabs.
CARD: Final = {
    "background": "#fff",
    "border": "1px solid #d0d7de",
    "border-radius": "10px",
    "padding": "12px",
    "margin": "10px 0 0 0",
}
