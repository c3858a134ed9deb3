"""Find a package file of PyPI or npm on the user's registry: the one that pip or npm is configured to use.

Nothing is installed and no code of a package runs: the address of the file is looked up, and http.py downloads it.
"""

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from .http import SourceUnavailable, host_of, read_page

PYPI, NPM = "https://pypi.org/simple", "https://registry.npmjs.org"
MAX_INDEX_BYTES = 20_000_000
PIP_SECONDS = 30
INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


def pypi_address(name: str, file: str) -> str:
    """The address of a file of a project, from the first index that lists it."""
    project, problems = re.sub(r"[-_.]+", "-", name).lower(), list[str]()
    for index in pip_indexes():
        try:
            page, address = read_page(f"{index.rstrip('/')}/{project}/", MAX_INDEX_BYTES, "text/html")
        except SourceUnavailable as error:
            problems.append(str(error))
            continue
        for link in re.findall(r"""\shref\s*=\s*["']([^"']+)""", page, re.I):
            target = urljoin(address, html.unescape(link)).partition("#")[0]
            if unquote(urlsplit(target).path.rpartition("/")[2]) == file:
                return _with_credentials(target, index)
        problems.append(f"{host_of(index)} does not list {file}")
    raise SourceUnavailable("; ".join(problems))


def _with_credentials(address: str, index: str) -> str:
    """The address with the user name and password of the index, if it is on the same host."""
    parts, credentials = urlsplit(address), urlsplit(index).netloc.rpartition("@")[0]
    if not credentials or parts.hostname != urlsplit(index).hostname:
        return address
    return parts._replace(netloc=f"{credentials}@{parts.netloc.rpartition('@')[2]}").geturl()


def pip_indexes() -> list[str]:
    """The indexes of the environment or of pip's configuration, PyPI by default; local folders are left out."""
    settings = {} if any(map(os.environ.get, INDEX_VARIABLES)) else _pip_settings()
    index = next(filter(None, map(os.environ.get, INDEX_VARIABLES)), settings.get("index-url") or PYPI)
    extra = os.environ.get("PIP_EXTRA_INDEX_URL") or settings.get("extra-index-url", "")
    return [url for url in (index, *extra.split()) if url.startswith(("http://", "https://"))]


def _pip_settings() -> dict[str, str]:
    """The settings in pip's configuration files; those for downloads win over the global ones."""
    command = [sys.executable, "-P", "-m", "pip", "config", "list", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=PIP_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = re.findall(r"^(global|download)\.([\w-]+)=['\"](.*)['\"]$", done.stdout, re.M)
    return {name: value for section in ("global", "download") for part, name, value in lines if part == section}


def npm_address(name: str, version: str) -> str:
    """The address of a package file: it has the same form on npm's registry and on mirrors of it."""
    return f"{npm_registry(name).rstrip('/')}/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"


def npm_registry(name: str) -> str:
    """The registry of the environment or of the user's .npmrc (of the scope, if it has its own); else npm's."""
    file = Path(os.environ.get("NPM_CONFIG_USERCONFIG") or Path.home() / ".npmrc")
    text = file.read_text(errors="replace") if file.is_file() else ""
    settings = dict(re.findall(r"^\s*((?:@[\w.-]+:)?registry)\s*=\s*[\"']?([^\s\"']+)", text, re.M))
    scoped = settings.get(f"{name.partition('/')[0]}:registry") if name.startswith("@") else None
    general = next((value for key, value in os.environ.items() if key.lower() == "npm_config_registry"), "")
    return scoped or general or settings.get("registry") or NPM
