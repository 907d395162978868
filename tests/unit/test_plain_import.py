"""`import kafkalog` and its public modules need no package of an extra."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from packaging.requirements import Requirement

SCRIPT = """
import sys
from importlib.abc import MetaPathFinder

class Refused(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refused())
import kafkalog, kafkalog.config, kafkalog.decoding, kafkalog.errors, kafkalog.remote, kafkalog.report.survey
import kafkalog.store
kafkalog.RemoteStorage("s3://bucket/prefix", layout="aiven")
kafkalog.decoding.wire_format(print)
"""


def test_it_wants_no_package_of_an_extra() -> None:
    of_extras = {
        each.name.lower().replace("-", "_")
        for each in map(Requirement, metadata.requires("kafkalog") or ())
        if each.marker is not None and "extra" in str(each.marker) and each.name != "kafkalog"
    }
    modules = sorted(
        module
        for module, distributions in metadata.packages_distributions().items()
        if of_extras & {each.lower().replace("-", "_") for each in distributions}
    )
    assert {"cryptography", "fsspec", "jinja2", "pyarrow"} <= set(modules)
    subprocess.run([sys.executable, "-c", SCRIPT.format(refused=modules)], check=True, timeout=60)
