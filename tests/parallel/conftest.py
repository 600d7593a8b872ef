import sys
from pathlib import Path

# `test_processes` is shared by the test files of this folder; tests are no package.
sys.path.insert(0, str(Path(__file__).parent))
