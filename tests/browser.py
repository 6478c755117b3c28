"""Headless Chromium, driven over a pipe with nothing but the standard library."""

import functools
import json
import os
import select
import shutil
import subprocess
import sys
import time

PATIENCE = 120.0
# The protocol speaks on descriptors 3 and 4, in which the pipes may lie the wrong way round.
START = """
import os, sys
ends = [int(end) for end in sys.argv[1:3]]
while min(ends) < 5:
    ends = [os.dup(end) for end in ends]
for place, end in zip((3, 4), ends):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


@functools.cache
def find_browser():
    """Return the path of a Chromium that starts, or None; a name alone may be a stub."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path and not subprocess.run([path, "--version"], capture_output=True).returncode:
            return path
    return None


class Browser:
    """One tab that remembers what it asked the network for and what went wrong in it."""

    def __init__(self, folder):
        from_us, to_browser = os.pipe()
        from_browser, to_us = os.pipe()
        self._pipes = (to_browser, from_browser)
        self._rest, self._number = b"", 0
        self.events = []

        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", START, str(from_us), str(to_us), find_browser()),
                *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update"),
                "about:blank",
            ],
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        (target,) = [
            one["targetId"]
            for one in self._ask("Target.getTargets")["targetInfos"]
            if one["type"] == "page"
        ]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        """Send a command to the tab and return its answer."""
        return self._ask(method, session=self._session, **parameters)

    def at_width(self, width, *, mobile=False):
        """Show pages on a screen of this width, in pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def open(self, address):
        """Load a page and wait until it is there."""
        self.events.clear()
        self.ask("Page.navigate", url=address)
        self.wait_for_load()

    def wait_for_load(self):
        """Wait until a page is there: the one to open, or one that loads itself again."""
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive()
        self.run("new Promise(done => setTimeout(done, 50))")  # what comes late comes now

    def run(self, script):
        """Return the value of a script in the page."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self):
        """Return the addresses that were asked for since the page was opened."""
        found = (e for e in self.events if e["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in found]

    def complaints(self):
        """Return what was written to the console, and errors."""
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        opened = {"Page.javascriptDialogOpening"}
        return [e["params"] for e in self.events if e["method"] in kinds | opened]

    def close(self):
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
        for pipe in self._pipes:
            os.close(pipe)

    def _ask(self, method, session=None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._pipes[0], json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self):
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select(
                [self._pipes[1]], [], [], max(0.0, until - time.monotonic())
            )
            assert ready, "the browser does not answer"
            more = os.read(self._pipes[1], 1 << 20)
            assert more, f"the browser has ended with code {self._process.wait()}"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        answer = json.loads(text)
        if "method" in answer:
            self.events.append(answer)
        return answer
