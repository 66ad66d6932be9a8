"""Other tools' configurations: every key used, mapped, meaningless here, or refused with the reason; and a preset.

No torch, and no other tool: the meaning of their keys is written down here, with the dates of defaults that changed.
A file is never imported in part: where one key is refused there is no preset.
"""

from __future__ import annotations

from workbench.imports.findings import Assumed, Verdict
from workbench.imports.importing import Imported, import_file, import_text
from workbench.imports.lenient_json import Repair

__all__ = ["Assumed", "Imported", "Repair", "Verdict", "import_file", "import_text"]
