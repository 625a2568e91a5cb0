"""An MCP server with faults, for the tests of the client. Needs only the standard library.

    python3 server.py SCRIPT          over standard input and output
    python3 server.py SCRIPT http     over HTTP; prints its port first

SCRIPT is a JSON file that is read again for every request, so that a test can change the server while it runs:

    tools     the tools, as MCP lists them
    versions  "old" (the handshake, the default) or "new" (version 2026-07-28 without it)
    page      how many tools a page of the list has
    on_call   "echo" (the default), "die", "hang", "garbage", "huge", "error", "tool_error", "ping", "image"
    stream    true: answers of HTTP are streams of events
    session   the id of the session of HTTP; requests with another one are unknown
    status    the HTTP status of calls, without a body
    log       a file to which each request is added as a line
"""

import base64
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCRIPT = sys.argv[1]
META = "io.modelcontextprotocol/"


def script():
    with open(SCRIPT, encoding="utf-8") as file:
        return json.load(file)


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def content(text, is_error=False):
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def answer(now, message):
    method, params = message["method"], message.get("params", {})
    is_new = now.get("versions") == "new"
    meta = params.get("_meta", {})
    if method == "initialize" and not is_new:
        assert params["clientInfo"]["name"] == "windlass"
        info = {"name": "faulty", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if is_new and meta.get(META + "protocolVersion") != "2026-07-28":
        raise Refused(-32022, "unsupported protocol version")
    if method == "server/discover" and is_new:
        return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    if method == "tools/list":
        if not isinstance(now["tools"], list):
            return {"tools": now["tools"]}
        size, start = now.get("page", 100), int(params.get("cursor", "0"))
        page = {"tools": now["tools"][start : start + size]}
        if start + size < len(now["tools"]):
            page["nextCursor"] = str(start + size)
        return page
    if method == "tools/call":
        return call(now, params)
    raise Refused(-32601, "unknown method")


def call(now, params):
    how = now.get("on_call", "echo")
    if how == "die":
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    if how == "hang":
        time.sleep(3600)
    if how == "huge":
        return content("x" * 2_000_000)
    if how == "error":
        raise Refused(-32602, "no such file")
    if how == "tool_error":
        return content("the disk is full", True)
    if how == "image":
        data = base64.b64encode(b"12345").decode()
        return {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}
    called = {"tool": params["name"], "arguments": params["arguments"]}
    return {**content(json.dumps(called)), "structuredContent": called}


def respond(now, message):
    """The answer to a request, or none for a notification."""
    if "log" in now:
        with open(now["log"], "a", encoding="utf-8") as file:
            file.write(json.dumps(message) + "\n")
    if "id" not in message:
        return None
    base = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        return {**base, "result": answer(now, message)}
    except Refused as refused:
        return {**base, "error": {"code": refused.code, "message": str(refused)}}


def stdio():
    for line in sys.stdin:
        message, now = json.loads(line), script()
        if "method" not in message:
            continue
        is_call = message["method"] == "tools/call"
        if is_call and now.get("on_call") == "garbage":
            print("this is not JSON", flush=True)
            continue
        if is_call and now.get("on_call") == "ping":
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}), flush=True)
            print(json.dumps({"jsonrpc": "2.0", "id": "p", "method": "ping"}), flush=True)
            pong = json.loads(sys.stdin.readline())
            assert pong == {"jsonrpc": "2.0", "id": "p", "result": {}}, pong
        reply = respond(now, message)
        if reply is not None:
            print(json.dumps(reply), flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, kind="application/json", body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        now = script()
        method = message["method"]
        if self.headers.get("authorization") != "Bearer s3cret":
            return self.send(401)
        session = now.get("session")
        if session and method != "initialize" and self.headers.get("mcp-session-id") != session:
            return self.send(404)
        if now.get("versions") == "new" and method != "initialize":
            assert self.headers["mcp-protocol-version"] == "2026-07-28"
            assert self.headers["mcp-method"] == method
            assert method != "tools/call" or self.headers["mcp-name"] == message["params"]["name"]
        is_call = method == "tools/call"
        if is_call and "status" in now:
            return self.send(now["status"])
        if is_call and now.get("on_call") == "garbage":
            return self.send(200, body=b"this is not JSON")
        reply = respond(now, message)
        if reply is None:
            return self.send(202)
        headers = [("mcp-session-id", session)] if session and method == "initialize" else []
        status = 400 if reply.get("error", {}).get("code") == -32022 else 200
        if now.get("stream"):
            before = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
            body = f"event: message\ndata: {before}\n\nevent: message\ndata: {json.dumps(reply)}\n\n"
            return self.send(status, "text/event-stream", body.encode(), headers)
        return self.send(status, body=json.dumps(reply).encode(), headers=headers)


if len(sys.argv) > 2:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
else:
    stdio()
