"""Trains, translates and serves with what is installed, in this folder, which is no clone.

`./run wheel` runs it with an environment that has the wheel alone.
"""

import importlib.metadata
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

COMMAND = Path(sys.executable).with_name("transformer-jax")
TEXT, PORT = "The dog sleeps.", 5917


def command(*words, text=None):
    """The output of `transformer-jax`."""
    done = subprocess.run([COMMAND, *words], input=text, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def served():
    """What the server answers."""
    words = ["serve", "--workdir=run", f"--port={PORT}"]
    server = subprocess.Popen([COMMAND, *words], stderr=subprocess.PIPE, text=True)
    body = json.dumps({"q": TEXT, "source": "en", "target": "de"}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/translate", body, headers)
    try:
        for _ in range(120):
            time.sleep(1)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)["translatedText"]
            except OSError as error:
                last = error
                if server.poll() is not None:
                    break
        sys.exit(f"serve did not answer: {last}")
    finally:
        server.terminate()
        server.communicate()


names = ("transformer-jax", "jax", "flax", "numpy")
versions = (f"{name} {importlib.metadata.version(name)}" for name in names)
print(f"Python {sys.version.split()[0]}, {', '.join(versions)}", flush=True)
short = [f"--config.train.{key}" for key in ("steps=40", "evaluate_every=40")]
command("train", "--config=quickstart", "--workdir=run", "--no_progress", *short)
translated = command("translate", "--workdir=run", text=f"{TEXT}\n").strip()
answer = served()
assert translated and answer == translated, (translated, answer)
print(f"quickstart, translate and serve work: {TEXT} -> {answer}")
