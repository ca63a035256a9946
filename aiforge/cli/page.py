"""The script that Streamlit runs for `aiforge playground`."""

from __future__ import annotations

from aiforge.modules.chat.widget import chat_page

if __name__ == "__main__":
    chat_page()
