"""Digests of public containers: of each file, and of each tensor's bytes.

    python -m make.digests CONTAINER... > upstream_containers/digests.json

A container is a folder of safetensors files with `ref/reference_dequant.json`, which names the
checkpoint it was made from. With the digests a program can show that it writes or rebuilds the
same codes and scales without having the files.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any


def file_digests(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Size and digest of a file, and type, shape and digest of each of its tensors."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        tensors[name] = {
            "file": path.name,
            "dtype": entry["dtype"],
            "shape": entry["shape"],
            "sha256": hashlib.sha256(content[start + first : start + end]).hexdigest(),
        }
    whole = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return whole, tensors


def container_digests(folder: Path) -> dict[str, Any]:
    """Everything that is recorded of a container."""
    facts = json.loads((folder / "ref" / "reference_dequant.json").read_text(encoding="utf-8"))
    files: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        files[path.name], of_file = file_digests(path)
        tensors.update(of_file)
    return {"model": facts["model"], "files": files, "tensors": dict(sorted(tensors.items()))}


def text(containers: dict[str, Any]) -> str:
    """JSON with one file or tensor a line."""
    rows = []
    for name, container in containers.items():
        parts = [f'  "model": {json.dumps(container["model"])}']
        for key in ("files", "tensors"):
            lines = [f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in container[key].items()]
            parts.append(f'  "{key}": {{\n' + ",\n".join(lines) + "\n  }")
        rows.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main() -> None:
    """Writes the digests of the containers named on the command line."""
    folders = [Path(argument) for argument in sys.argv[1:]]
    if not folders:
        raise SystemExit("give the folders of containers")
    sys.stdout.write(text({folder.name: container_digests(folder) for folder in folders}))


if __name__ == "__main__":
    main()
