"""`histobench doctor`: check that this machine is ready."""

from __future__ import annotations

from histobench.cli.flags import WEIGHTS, verbose_option
from histobench.cli.terminal import Busy, open_terminal
from histobench.core.records import option, record
from histobench.mint.agent_checkup import check_mint
from histobench.roi.encoders.encoder_checkup import CheckupResult, check_encoders, check_machine


@record
class DoctorFlags:
    encoders: tuple[str, ...] = option(
        "encoders to check", default=(), old=("--models",), metavar="NAME,...", default_text="none"
    )
    weights: str | None = option(WEIGHTS, default=None, metavar="PATH")
    online: bool = option("ask the model hub whether access is granted", default=False)
    verbose: bool = verbose_option("show details of every check")


def doctor_command(args: DoctorFlags) -> int:
    """Check that this machine is ready: Python, packages, devices, disk, the agents'
    sandbox and the encoders that you name.

    Every line is PASS, WARN or FAIL, with the fix. The exit code is 0 unless a
    check fails.

    Examples:
      histobench doctor
      histobench doctor --encoders uni_v2,virchow2 --online
    """
    from rich.text import Text

    with Busy("checking this machine"):
        findings = check_machine()
        findings += [CheckupResult(*line) for line in check_mint()]
        findings += check_encoders(args.encoders, weights=args.weights, online=args.online)
    console = open_terminal()
    colours = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        line = Text(finding.verdict, style=colours[finding.verdict])
        line.append(f"  {finding.subject:<{width}}  {finding.message}", style="default")
        console.print(line)
        if finding.fix:
            word = "more" if finding.verdict == "PASS" else "fix"
            console.print(Text(f"      {'':<{width}}  {word}: {finding.fix}", style="dim"))
        if finding.details and args.verbose:
            console.print(Text(f"      {'':<{width}}  {finding.details}", style="dim"))
    return int(any(finding.verdict == "FAIL" for finding in findings))
