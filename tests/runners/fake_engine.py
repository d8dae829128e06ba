"""Stands for an engine that misbehaves on purpose; the real one is used wherever it can show the fault itself.

python fake_engine.py MODE PORT
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

mode, port = sys.argv[1], int(sys.argv[2])
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
answered = 0


class Handler(BaseHTTPRequestHandler):
    def reply(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.reply(json.loads(os.environ.get("FAKE_INFO", "{}")))

    def do_POST(self) -> None:
        global answered
        self.rfile.read(int(self.headers["Content-Length"]))
        answered += 1
        if mode == "hang" or (mode == "hang-later" and answered > 1):
            time.sleep(600)
        if mode == "die-later" and answered > 10:
            os._exit(9)
        if mode == "killed-later" and answered > 10:
            os.kill(os.getpid(), signal.SIGKILL)
        meta = {"completion_tokens": 2, "prompt_tokens": 3, "finish_reason": {"type": "stop"}, "num_retractions": 1}
        self.reply({"text": "The answer is 3.", "output_ids": [answered, 2], "meta_info": meta})

    def log_message(self, *_: object) -> None:
        pass


if mode == "exit":
    print(*(f"loading {number}" for number in range(60)), sep="\n")
    print("RuntimeError: index out of bounds during graph capture", flush=True)
    sys.exit(3)
if mode == "falls-back":
    print("speculative_adaptive disabled: topk is 4. Falling back to static speculative params.", flush=True)
if mode == "orphans":
    # One child in our group, and one in a session of its own whose parent is gone.
    subprocess.Popen(SLEEPER)
    subprocess.run(["setsid", "--fork", *SLEEPER], check=True)
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
