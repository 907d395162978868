"""Lists the findings of the given files and directories, or of the whole tree."""

import sys
from collections import Counter
from pathlib import Path

from tests.prose import findings
from tests.prose.text import ROOT, files

found = [each for path in files(*map(Path, sys.argv[1:])) for each in findings(path)]
for each in found:
    print(each)
for rule, count in Counter(each.rule for each in found).most_common():
    print(f"{count} x {rule}")
print(f"{len(found)} findings under {', '.join(sys.argv[1:]) or ROOT.name}")
sys.exit(bool(found))
