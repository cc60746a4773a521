"""What the reference page of the cryptography shows runs, here with short keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
SHORT = {
    "generate_keys(3072)": "generate_keys(512, insecure_for_tests=True)",
    "key_bits=3072": "key_bits=512",
    "bits=3072)": "bits=512, insecure_for_tests=True)",
}


def test_the_code_on_the_page_runs(checkout: Path) -> None:
    text = (checkout / "docs" / "reference" / "crypto.md").read_text(encoding="utf-8")
    code = "\n".join(BLOCK.findall(text))
    for long, short in SHORT.items():
        assert long in code
        code = code.replace(long, short)
    names: dict[str, Any] = {}

    exec(compile(code, "crypto.md", "exec"), names)

    layout, columns, residues = names["layout"], names["columns"], names["residues"]
    assert (names["sums"] - columns.T @ residues).abs().max() <= layout.error
    assert names["owner"].decrypt(names["sent"]) == layout.encode_values(residues).tolist()
