"""`gpulayers doctor`: what stands between this machine and the GPU."""

import argparse
import json
from dataclasses import dataclass
from typing import Any

from gpulayers.cli.arguments import Parser, add_options, given
from gpulayers.doctor import CHECKS, Finding, Status, diagnose
from gpulayers.training.options import option

DESCRIPTION = """\
What stands between this machine and the GPU, with one line to mend each.

Exit status: 0 if nothing does, 1 if something is to be mended. Warnings are about other things than the GPU's work."""

TO_MEND = 1


@dataclass(frozen=True)
class DoctorOptions:
    """How to tell it."""

    json: bool = option(False, "print JSON instead")


def add_parser(commands: Any, words: list[str]) -> Parser:
    parser = commands.add_parser(
        "doctor",
        usage="gpulayers doctor [--json]",
        help="what stands between this machine and the GPU",
        description=DESCRIPTION,
    )
    add_options(parser, DoctorOptions(), "doctor")
    return parser


def run(namespace: argparse.Namespace) -> int:
    options = DoctorOptions(**given(namespace, "doctor", DoctorOptions()))
    findings = []
    for finding in diagnose():
        findings.append(finding)
        if not options.json:
            print(line(finding), flush=True)
    to_mend = [finding for finding in findings if finding.status == Status.FAIL]
    if options.json:
        print(json.dumps({"gpu": not to_mend, "checks": [f._asdict() for f in findings]}, indent=1))
    else:
        print("\n" + verdict(to_mend))
    return TO_MEND if to_mend else 0


def line(finding: Finding) -> str:
    width = max(map(len, CHECKS)) + 2
    text = f"{finding.check:<{width}}{finding.status:<9}{finding.found}"
    return f"{text}\n{'':<{width}}-> {finding.remedy}" if finding.remedy else text


def verdict(to_mend: list[Finding]) -> str:
    if not to_mend:
        return "nothing stands between this machine and the GPU"
    names = ", ".join(finding.check for finding in to_mend)
    return f"to mend before the GPU can be used, from the top: {names}"
