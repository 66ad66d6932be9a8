"""DeepSpeed configurations: every key used, mapped, meaningless here, or refused with the reason; and a preset.

No torch, and no DeepSpeed: what its keys mean is written down here, with the dates of defaults that have changed.
A file is never taken over in part: where one key is refused there is no preset.
"""

from __future__ import annotations

from workbench.imports.findings import Assumed, Verdict
from workbench.imports.forgiving_json import Repair
from workbench.imports.importing import Imported, import_file, import_text

__all__ = ["Assumed", "Imported", "Repair", "Verdict", "import_file", "import_text"]
