"""harken report RUN"""

import click

from harken.console import ConsoleListener

from . import json_option, print_json


@click.command()
@click.argument("run")
@click.argument("settings", nargs=-1, metavar="[report.KEY=VALUE]...")
@click.option("--open", "open_", is_flag=True, help="Open the report in the web browser.")
@json_option
def report(run: str, settings: tuple[str, ...], open_: bool, json_: bool) -> None:
    """Build report.html of RUN again and print its path. Its samples need the data that RUN was trained on.

    report.samples=0 builds it without any row of the data.
    """
    from harken.experiments.report.rebuild import rebuild_report
    from harken.recipe import parse_override

    with ConsoleListener(to_stderr=True) as listener:
        path = rebuild_report(run, settings=dict(map(parse_override, settings)), listen=listener)
    print_json({"path": str(path)}) if json_ else click.echo(str(path))
    if open_:
        import webbrowser

        if not webbrowser.open(path.absolute().as_uri()):
            click.echo(f"no web browser can be started; open {path.absolute()} yourself", err=True)
