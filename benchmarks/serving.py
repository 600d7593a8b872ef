"""A server under load: many clients at once, every answer compared with `translate`.

    python benchmarks/serving.py --workdir=runs/quickstart [--clients=64] [--seconds=120]

Translates the sentences of the run's test set with the library, starts `transformer-jax serve`,
then lets every client send one sentence after another. A refused request (429) is sent again and
counted. Ends with status 1 if an answer is wrong or missing. Needs ./run setup serve clients.
"""

import argparse
import asyncio
import itertools
import re
import subprocess
import sys
import time

import httpx
import numpy as np

import transformer_jax as tj
from transformer_jax.cli.host_memory import keep_freed_memory
from transformer_jax.data.text import read_pairs


def start(arguments: argparse.Namespace) -> tuple[subprocess.Popen, str]:
    """A server of the run, once it is healthy, and its address."""
    program = "import sys; from transformer_jax.cli.main import main; sys.exit(main())"
    flags = ["serve", f"--workdir={arguments.workdir}", "--port=0"]
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


async def load(url: str, server: subprocess.Popen, sentences: list[str], arguments) -> tuple:
    """What was answered: (sentence, translation, seconds); refusals; errors; memory over time."""
    limits = httpx.Limits(max_connections=arguments.clients)
    answers: list[tuple[int, str, float]] = []
    refused, errors, memory = 0, [], []
    began = time.perf_counter()
    order = itertools.cycle(range(len(sentences)))

    async def client(http: httpx.AsyncClient) -> None:
        nonlocal refused
        while time.perf_counter() - began < arguments.seconds:
            number = next(order)
            form = {"q": sentences[number], "source": arguments.source, "target": arguments.target}
            sent = time.perf_counter()
            answer = await http.post(f"{url}/translate", json=form)
            while answer.status_code == 429:
                refused += 1
                await asyncio.sleep(0.05)
                answer = await http.post(f"{url}/translate", json=form)
            if answer.status_code == 200:
                seconds = time.perf_counter() - sent
                answers.append((number, answer.json()["translatedText"], seconds))
            else:
                errors.append(f"{answer.status_code}: {answer.text[:100]}")

    async def watch() -> None:
        while True:
            memory.append(resident(server))
            await asyncio.sleep(1)

    async with httpx.AsyncClient(limits=limits, timeout=120) as http:
        watching = asyncio.create_task(watch())
        await asyncio.gather(*(client(http) for _ in range(arguments.clients)))
        watching.cancel()
        metrics = (await http.get(f"{url}/metrics")).text
    total, count = (
        float(re.search(rf"^transformer_jax_batch_sentences_{each} (\S+)$", metrics, re.M)[1])
        for each in ("sum", "count")
    )
    print(f"batches:   {total / count:.1f} sentences on average")
    return answers, refused, errors, memory, time.perf_counter() - began


def main() -> int:
    """Prints speeds, latencies and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    keep_freed_memory()
    run = tj.open_run(arguments.workdir)
    data = run.config.data
    arguments.source, arguments.target = data.source_language, data.target_language
    sentences = [source for source, _ in read_pairs(data, "test")]
    translator = run.translator()
    translator.translate(sentences)  # compiles
    decoded = translator.decode(sentences)
    expected = [each[0].text for each in decoded.translations]
    alone = len(sentences) / decoded.seconds
    print(f"translate: {alone:.1f} sentences/s, {len(sentences)} sentences")

    server, url = start(arguments)
    try:
        answers, refused, errors, memory, seconds = asyncio.run(
            load(url, server, sentences, arguments)
        )
    finally:
        server.terminate()
        status = server.wait(60)
    wrong = [(number, text) for number, text, _ in answers if text != expected[number]]
    times = np.array([each[2] for each in answers]) * 1000
    speed = len(answers) / seconds
    print(f"serve:     {speed:.1f} sentences/s ({speed / alone:.0%}), {arguments.clients} clients")
    p50, p99 = np.percentile(times, [50, 99])
    print(f"latency:   p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    print(f"answers:   {len(answers)} in {seconds:.0f} s, {len(wrong)} wrong, {refused} refused")
    third = max(1, len(memory) // 3)
    print(
        f"memory:    {max(memory[:third]):.0f} MB at first, {max(memory[-third:]):.0f} MB at last"
    )
    for line in [*errors[:5], *(f"wrong: {sentences[n]!r} -> {t!r}" for n, t in wrong[:5])]:
        print(line)
    print(f"SIGTERM:   exit status {status}")
    return 1 if wrong or errors or status else 0


if __name__ == "__main__":
    sys.exit(main())
