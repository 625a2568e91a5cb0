# A runner of an HTTP relay, standard library only: RELAY_SECRET=whsec_... python3 relay_runner.py 9000
import base64, hashlib, hmac, json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
SECRET = base64.b64decode(os.environ["RELAY_SECRET"].removeprefix("whsec_"))

def verified(headers, body):
    stamp = headers.get("webhook-timestamp", "")
    signed = f"{headers.get('webhook-id')}.{stamp}.".encode() + body
    mine = "v1," + base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    fresh = stamp.isdecimal() and abs(time.time() - int(stamp)) < 300
    return fresh and any(hmac.compare_digest(mine, s) for s in headers.get("webhook-signature", "").split())

def run_step(step):
    name = step["payload"]["name"].strip().title()
    if step["step"] < 2:
        return {"outcome": "continue_after", "delay_ms": 2000 * step["step"], "payload": {"name": name}}
    return {"outcome": "succeed", "result": f"Hello, {name}!"}

class Runner(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        print(self.headers["webhook-id"], flush=True)
        try:  # The answer is begun when it is known: what goes wrong before is a 500, and tried again.
            ok = verified(self.headers, body)
            status, answer = (200, run_step(json.loads(body))) if ok else (401, "the signature is wrong")
        except Exception as error:
            status, answer = 500, repr(error)
        answer = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Runner)
print(f"http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
