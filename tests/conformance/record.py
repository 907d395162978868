"""Records real Kafka's answers to kafkalog's scenarios: writes `expected.jsonl` next to their `script.jsonl`.

python -m tests.conformance.record NAME...        (below tests/conformance/scenarios)
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conformance import kafka_jars
from tests.conformance.compare import NOT_COMPARED, load_results

SCENARIOS = Path(__file__).with_name("scenarios")


def prepare(scenario: Path, work_dir: Path) -> None:
    """The directory in which a scenario begins: empty, or a copy of its `input/`."""
    if (scenario / "input").exists():
        shutil.copytree(scenario / "input", work_dir)
    else:
        work_dir.mkdir(parents=True)


def write_list(scenarios: Sequence[Path], work: Path) -> Path:
    """Creates new work directories for these scenarios, and the list that both engines' `--many` reads."""
    rows = []
    for scenario in scenarios:
        prepare(scenario, work / scenario.name)
        rows.append(f"{scenario / 'script.jsonl'}\t{work / scenario.name}\t{work / (scenario.name + '.out')}\n")
    listfile = work / "list"
    listfile.write_text("".join(rows))
    return listfile


def main(names: Sequence[str]) -> int:
    scenarios = [SCENARIOS / name for name in names]
    with tempfile.TemporaryDirectory(prefix="kafkalog-record-") as folder:
        work = Path(folder)
        kafka_jars.driver().run_many(write_list(scenarios, work))
        for scenario in scenarios:
            with (scenario / "expected.jsonl").open("w") as file:
                for result in load_results(work / f"{scenario.name}.out"):
                    kept = {k: v for k, v in result.items() if k == "message" or k not in NOT_COMPARED}
                    if "message" in kept:
                        kept["message"] = str(kept["message"]).replace(f"{work / scenario.name}/", "WORKDIR/")
                    file.write(json.dumps(kept, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
