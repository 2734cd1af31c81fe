"""The installed wheel holds every kernel file, and imports from a foreign folder. Run: check_wheel.py KERNEL_FOLDER"""

import sys
from pathlib import Path

import gpulayers
from gpulayers.cuda import kernel_folder

package = Path(gpulayers.__file__).parent
assert "site-packages" in str(package), f"gpulayers was imported from {package}, not from the installed wheel"
assert kernel_folder() == package / "kernels", kernel_folder()
assert (package / "py.typed").is_file(), "py.typed is missing"

wanted = {p.name for p in Path(sys.argv[1]).iterdir() if p.suffix in (".cu", ".cuh")}
found = {p.name for p in kernel_folder().iterdir()}
assert wanted, f"no kernel files in {sys.argv[1]}"
assert wanted <= found, f"the wheel lacks {sorted(wanted - found)}"
assert not (kernel_folder() / "__init__.py").exists(), "kernels/__init__.py would shadow another package"
print(f"the wheel holds {len(wanted)} kernel file(s) and imports from {package}")
