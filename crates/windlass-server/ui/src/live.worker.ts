// Shares one stream of hints among all tabs: over HTTP/1.1 a browser opens six connections to a host.
import { type FromTab, Stream } from "./stream";

declare const self: { onconnect: ((event: MessageEvent) => void) | null };

const tabs = new Map<MessagePort, string[]>();
const stream = new Stream((message) => {
  for (const port of tabs.keys()) port.postMessage(message);
});

function update(url: string) {
  stream.follow(url, tabs.size === 0 ? null : [...new Set([...tabs.values()].flat())].sort());
}

self.onconnect = (event) => {
  const port = event.ports[0];
  port.onmessage = ({ data }: MessageEvent<FromTab>) => {
    if (data.runs === null) tabs.delete(port);
    else tabs.set(port, data.runs);
    update(data.url);
    if (data.wake) stream.wake();
    if (data.runs !== null) port.postMessage(stream.state());
  };
};
