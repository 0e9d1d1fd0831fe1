"""Open every page of the built book in a browser, from disk and over http, and say what is wrong with it.

Wrong are errors on the console, requests that leave the book, formulas and diagrams that were not drawn, and pages
that scroll sideways. Needs Chromium and playwright: ``apt install chromium``, ``pip install playwright``.
"""

import argparse
import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BOOK = Path(__file__).parent / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
WINDOW = {"width": 1280, "height": 900}
DRAWN_IN = 15_000
"""Milliseconds for a page's formulas and diagrams."""

UNFINISHED = """() => {
    const pending = document.querySelectorAll('pre.diagram:not(.drawn)').length;
    const formulas = document.querySelectorAll('.math').length;
    return pending > 0 || (formulas > 0 && document.querySelectorAll('mjx-container').length === 0);
}"""
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log, to readers who may turn the page before they have all of it."""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a file as far as the reader takes it."""
        with suppress(ConnectionError):
            super().copyfile(source, outputfile)


@contextmanager
def over_http(folder: Path) -> Iterator[str]:
    """The folder's address on this machine, while the context is open."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


class Reader:
    """A browser's tab that notes what goes wrong. ``base`` is the book's address, with a slash at its end."""

    def __init__(self, context: Any, base: str) -> None:
        self.base = base
        self.notes: list[str] = []
        self.page = context.new_page()
        self.page.route("**/*", self._let_through)
        self.page.on("console", lambda message: self.notes.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.notes.append(str(error)))
        self.page.on("response", self._look_at)

    def _let_through(self, route: Any) -> None:
        if route.request.url.startswith((self.base, "data:", "blob:")):
            route.continue_()
        else:
            self.notes.append(f"asks for {route.request.url}")
            route.abort()

    def _look_at(self, response: Any) -> None:
        if response.status >= 400:
            self.notes.append(f"{response.status} for {response.url}")

    def read(self, path: str) -> list[str]:
        """Open a page, and return what is wrong with it."""
        self.notes.clear()
        self.page.goto(self.base + path)
        self.page.wait_for_load_state("load")
        try:
            self.page.wait_for_function(f"() => !({UNFINISHED})()", timeout=DRAWN_IN)
        except Exception:
            self.notes.append("formulas or diagrams were not drawn")
        if self.page.locator("mjx-merror, [data-mml-node=merror]").count():
            self.notes.append("a formula does not parse")
        if (pixels := self.page.evaluate(SIDEWAYS)) > 0:
            self.notes.append(f"scrolls sideways by {pixels} pixels")
        return list(self.notes)

    def search(self, word: str) -> list[str]:
        """Search for a word, and return what is wrong with the answer."""
        self.notes.clear()
        self.page.goto(f"{self.base}search.html?q={word}")
        try:
            self.page.wait_for_selector("ul.search li", timeout=DRAWN_IN)
        except Exception:
            self.notes.append(f"search does not find {word!r}")
        return list(self.notes)


def check(browser: Any, base: str, pages: list[str]) -> Iterator[str]:
    """All that is wrong with these pages, a line each."""
    context = browser.new_context(viewport=WINDOW)
    reader = Reader(context, base)
    for path in pages:
        yield from (f"{base}{path}: {note}" for note in reader.read(path))
    yield from (f"{base}search.html: {note}" for note in reader.search("watermark"))
    context.close()


def take_screenshots(browser: Any, base: str, pages: list[str], folder: Path) -> None:
    """Each page in light and in dark, from top to bottom."""
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=WINDOW, color_scheme=scheme)
        reader = Reader(context, base)
        for path in pages:
            reader.read(path)
            name = path.removesuffix(".html").replace("/", "-")
            reader.page.screenshot(path=folder / f"{name}-{scheme}.png", full_page=True)
        context.close()


def browser_path() -> str | None:
    """Where the browser is, if there is one."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def missing() -> str | None:
    """What has to be there first, in a sentence."""
    if not (BOOK / "book" / "index.html").exists():
        return "there is no book yet; run `make book`"
    if browser_path() is None:
        return f"there is no browser; install Chromium (looked for {', '.join(BROWSERS)})"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return f"playwright is not installed; run `{sys.executable} -m pip install playwright`"
    return None


def main() -> int:
    """Check the book; the exit code is 1 if something is wrong, and 2 if nothing could be checked."""
    parser = argparse.ArgumentParser(description="Check the built book in a browser.")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="leave pictures of the pages here")
    parser.add_argument("pages", nargs="*", help="pages below the book's folder; by default all")
    arguments = parser.parse_args()
    if obstacle := missing():
        print(f"book/check.py: {obstacle}", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    pages = arguments.pages or sorted(file.relative_to(BOOK).as_posix() for file in BOOK.rglob("*.html"))
    with sync_playwright() as driver, over_http(BOOK) as address:
        browser = driver.chromium.launch(executable_path=browser_path(), args=FLAGS)
        problems = [line for base in (BOOK.as_uri() + "/", address) for line in check(browser, base, pages)]
        if arguments.screenshots:
            arguments.screenshots.mkdir(parents=True, exist_ok=True)
            read = [page for page in pages if not page.startswith("_modules/")]
            take_screenshots(browser, address, read, arguments.screenshots)
        browser.close()
    for problem in problems:
        print(problem)
    print(f"{len(pages)} pages from disk and over http: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
