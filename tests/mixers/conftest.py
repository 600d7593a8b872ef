import sys
from pathlib import Path

# The contract suite and the naive references serve the tests of this folder; tests are no package.
for folder in ("contract", "reference"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
