import sys
from pathlib import Path

# `toy` is shared by the test files of this folder; tests are no package.
sys.path.insert(0, str(Path(__file__).parent))
