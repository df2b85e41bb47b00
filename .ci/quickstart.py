"""Print the program below the heading "Quickstart" of a page, such as README.md."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
section = text.partition("\n## Quickstart\n")[2]
found = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
sys.exit("there is no quickstart") if found is None else sys.stdout.write(found[1])
