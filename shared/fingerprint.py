"""ModelInfo.tokenizer_fingerprint, computed alike by the worker and by the render service."""

import hashlib
import json
from pathlib import Path


def tokenizer_fingerprint(folder: Path) -> str:
    """SHA-256 of a folder's tokenizer.json as 64 hexadecimal digits; "" if there is none.

    Over its content in one canonical form (keys sorted, no spaces, ASCII), so that a file written again by
    another library keeps its fingerprint. The added tokens are part of that file; the chat template is not.
    OSError if it cannot be read, ValueError if it is not JSON.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        return ""
    content = json.loads(path.read_bytes())
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
