"""Pages in headless Chromium: a script drives the page, and its findings are read from the
document."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

DRIVER = """
const problems = [];
window.addEventListener("error", (e) => problems.push(String(e.message)));
document.addEventListener("securitypolicyviolation", (e) => problems.push(`${e.violatedDirective} ${e.blockedURI}`));
for (const name of ["error", "warn"]) console[name] = (...words) => problems.push(words.join(" "));
window.addEventListener("load", () => {
  const $ = (selector) => document.querySelector(selector), all = (selector) => [...document.querySelectorAll(selector)];
  const type = (selector, value, event) => { $(selector).value = value; $(selector).dispatchEvent(new Event(event)); };
  const result = {};
  try { STEPS } catch (error) { problems.push(`${error} ${error.stack}`); }
  result.problems = problems;
  result.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  const node = document.createElement("pre");
  node.id = "driver-result";
  node.textContent = JSON.stringify(result);
  document.body.append(node);
});
"""


def with_driver(page: str, steps: str) -> str:
    """Return the page with a script that takes these steps, which its content security policy
    allows."""
    script = DRIVER.replace("STEPS", steps)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    return page.replace("</head>", f"<script>{script}</script></head>", 1)


def chromium(path: Path, *options: str) -> str:
    """Open a file and return the document after it has been loaded."""
    assert CHROMIUM is not None
    profile = path.with_suffix(".profile")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-extensions"]
    command += [f"--user-data-dir={profile}", "--window-size=1400,1200", *options, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def drive(page: str, steps: str, path: Path, virtual_time: bool = True) -> dict[str, Any]:
    """Write the page with a driver, open it, and return `result` of the steps, with `problems`
    (errors of the console, violations of the policy) and `requests`. With virtual time, timers of
    the page pass at once and `performance.now()` is no wall time."""
    path.write_text(with_driver(page, steps))
    found = re.search(
        r'<pre id="driver-result">(.*?)</pre>',
        chromium(path, "--dump-dom", *(["--virtual-time-budget=5000"] if virtual_time else [])),
        re.DOTALL,
    )
    assert found is not None, "the driver did not end"
    return json.loads(html.unescape(found[1]))  # type: ignore[no-any-return]
