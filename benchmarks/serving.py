"""A server under load: many clients at once, every answer compared with `translate`.

    python benchmarks/serving.py --workdir=runs/quickstart [--clients=64] [--seconds=120]
        [FLAGS OF transformer-jax serve]

Translates the sentences of the run's test set with the library, starts `transformer-jax serve`,
then lets every client send one sentence after another, and translates with the library again. An
answer is right if `translate` gives it with one of the server's sizes of batches. A refused request
(429) is sent again and counted. Ends with status 1 if an answer is wrong or missing. Needs ./run
setup serve.
"""

import argparse
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

import transformer_jax as tj
from transformer_jax.commands.host_memory import keep_freed_memory
from transformer_jax.commands.serve.jax_engine import JaxEngine
from transformer_jax.data.splits import read_pairs


def start(arguments: argparse.Namespace) -> tuple[subprocess.Popen, str]:
    """A server of the run, once it is healthy, and its address."""
    program = "import sys; from transformer_jax.commands.main import main; sys.exit(main())"
    flags = ["serve", f"--workdir={arguments.workdir}", "--port=0", *arguments.serve]
    server = subprocess.Popen(
        [sys.executable, "-c", program, *flags], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    url = ""
    for line in server.stderr:
        print(f"server: {line.rstrip()}")
        if found := re.search(r"http://\S+", line):
            url = found[0]
        if line.startswith("ready"):
            return server, url
    raise SystemExit("the server did not start")


def resident(server: subprocess.Popen) -> float:
    """Memory of the server in MB."""
    with open(f"/proc/{server.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1000


@dataclass
class Load:
    """What the clients saw."""

    answers: list[tuple[int, str, float]]  #: number of the sentence, its translation, seconds
    refused: int = 0
    errors: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  #: of the server, every second
    seconds: float = 0.0


def request(form: dict[str, str]) -> bytes:
    """A POST of the form.

    The clients are made of sockets, because a library for HTTP takes from the two cores a good part
    of what the server could translate with.
    """
    body = json.dumps(form).encode()
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_answer(answers: BinaryIO) -> tuple[int, bytes]:
    """The status and the body of the next answer."""
    status = int(answers.readline().split()[1])
    length = 0
    while (line := answers.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, answers.read(length)


def load(url: str, server: subprocess.Popen, sentences: list[str], arguments: Any) -> Load:
    """Lets the clients, a thread each, send sentences for the given time."""
    seen = Load([])
    began = time.perf_counter()
    order = itertools.cycle(range(len(sentences)))  # next() of it is atomic
    requests = [
        request({"q": sentence, "source": arguments.source, "target": arguments.target})
        for sentence in sentences
    ]

    def client() -> None:
        host, port = url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=120)
        answers = connection.makefile("rb")
        while time.perf_counter() - began < arguments.seconds:
            number = next(order)
            sent, status = time.perf_counter(), 429
            while status == 429:
                connection.sendall(requests[number])
                status, body = read_answer(answers)
                if status == 429:
                    seen.refused += 1
                    time.sleep(0.05)
            if status == 200:
                text = json.loads(body)["translatedText"]
                seen.answers.append((number, text, time.perf_counter() - sent))
            else:
                seen.errors.append(f"{status}: {body!r}")

    def guarded() -> None:
        try:
            client()
        except Exception as error:
            seen.errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded) for _ in range(arguments.clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.memory.append(resident(server))
        time.sleep(1)
    seen.seconds = time.perf_counter() - began
    return seen


def batch_size(url: str) -> float:
    """Sentences in a batch, on average, by the server's own count."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        metrics = answer.read().decode()
    total, count = (
        float(re.search(rf"^transformer_jax_batch_sentences_{each} (\S+)$", metrics, re.M)[1])
        for each in ("sum", "count")
    )
    return total / count


def speed_alone(translator: tj.Translator, sentences: list[str], seconds: float = 10.0) -> float:
    """Sentences per second of `translate`; the speed of a shared machine changes by the second."""
    began, passes = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        translator.translate(sentences)
        passes += 1
    return passes * len(sentences) / (time.perf_counter() - began)


def main() -> int:
    """Prints speeds, latencies and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    arguments, arguments.serve = parser.parse_known_args()
    keep_freed_memory()
    run = tj.open_run(arguments.workdir)
    data = run.config.data
    arguments.source, arguments.target = data.source_language, data.target_language
    sentences = [source for source, _ in read_pairs(data, "test")]
    translator = run.translator()
    translator.translate(sentences)  # compiles
    decoded = translator.decode(sentences, num_best=1)
    expected = [{each[0].text} for each in decoded.translations]
    for rows in JaxEngine(translator, "", "").rows[:-1]:  # rounding differs with the batch size
        for texts, text in zip(
            expected, translator.translate(sentences, batch_size=rows), strict=True
        ):
            texts.add(text)
    unsure = sum(len(texts) > 1 for texts in expected)
    print(f"{unsure} sentences have another translation with another --batch_size, by rounding")

    before = speed_alone(translator, sentences)
    server, url = start(arguments)
    try:
        seen = load(url, server, sentences, arguments)
        mean_batch = batch_size(url)
    finally:
        server.terminate()
        status = server.wait(60)
    after = speed_alone(translator, sentences)
    alone = (before + after) / 2
    print(f"translate: {before:.1f} sentences/s before, {after:.1f} after")
    wrong = [(number, text) for number, text, _ in seen.answers if text not in expected[number]]
    times = np.array([each[2] for each in seen.answers]) * 1000
    speed = len(seen.answers) / seen.seconds
    print(f"serve:     {speed:.1f} sentences/s ({speed / alone:.0%}), {arguments.clients} clients")
    print(f"batches:   {mean_batch:.1f} sentences on average")
    p50, p99 = np.percentile(times, [50, 99])
    print(f"latency:   p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    counts = f"{len(wrong)} wrong, {seen.refused} refused, {len(seen.errors)} errors"
    print(f"answers:   {len(seen.answers)} in {seen.seconds:.0f} s, {counts}")
    third = max(1, len(seen.memory) // 3)
    first, last = max(seen.memory[:third]), max(seen.memory[-third:])
    print(f"memory:    {first:.0f} MB in the first third, {last:.0f} MB in the last")
    for line in [*seen.errors[:5], *(f"wrong: {sentences[n]!r} -> {t!r}" for n, t in wrong[:5])]:
        print(line)
    print(f"SIGTERM:   exit status {status}")
    return 1 if wrong or seen.errors or status else 0


if __name__ == "__main__":
    sys.exit(main())
