// Measures the figures of docs/dashboard.md on the example `showcase`, through a proxy that counts requests.
import { readdirSync, readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { fileURLToPath } from "node:url";
import { brotliCompressSync } from "node:zlib";
import { chromium } from "playwright-core";
import { freePort, startShowcase } from "./showcase.mjs";

const RUNS = Number(process.env.RUNS ?? 100_000);
const STEPS = 5_000;
const server = await startShowcase(String(RUNS), String(STEPS));
const target = new URL(server.origin);
const seen = { requests: 0, streams: 0, streamsMax: 0 };
const proxy = createServer((asked, answer) => {
  const isStream = asked.url.startsWith("/api/live");
  seen.requests += 1;
  if (isStream) {
    seen.streams += 1;
    seen.streamsMax = Math.max(seen.streamsMax, seen.streams);
  }
  const sent = request(
    {
      host: target.hostname,
      port: target.port,
      path: asked.url,
      method: asked.method,
      headers: asked.headers,
    },
    (received) => {
      answer.writeHead(received.statusCode, received.headers);
      answer.flushHeaders();
      received.pipe(answer);
    },
  );
  sent.on("error", () => answer.destroy());
  answer.on("close", () => {
    if (isStream) seen.streams -= 1;
    sent.destroy();
  });
  asked.pipe(sent);
});
const port = await freePort();
await new Promise((done) => proxy.listen(port, "127.0.0.1", done));
const origin = `http://127.0.0.1:${port}`;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--enable-precise-memory-info", "--js-flags=--expose-gc"],
});
const show = (name, value) => console.log(`${name.padEnd(58)} ${value}`);
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const ms = (value) => `${Math.round(value)} ms`;
const wait = (time) => new Promise((done) => setTimeout(done, time));

async function firstPaint() {
  const paints = [];
  const shown = [];
  for (let round = 0; round < 5; round += 1) {
    const page = await browser.newPage();
    // Straight from the server, without the proxy.
    await page.goto(`${server.origin}/ui/`);
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    shown.push(await page.evaluate(() => performance.now()));
    const paint = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0;
    paints.push(await page.evaluate(paint));
    await page.close();
  }
  show("first contentful paint of the overview, median of 5", ms(median(paints)));
  show("overview shown, median of 5", ms(median(shown)));
}

async function manySteps() {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  await page.goto(`${origin}/ui/settings`);
  await page.getByRole("heading", { name: "Settings" }).waitFor();
  await page.goto(`${origin}/ui/runs/fan-out/many-steps`);
  await page.locator(".bar-row").first().waitFor();
  show(`run with ${STEPS} steps: first rows shown after`, ms(await page.evaluate(() => performance.now())));
  // Further pages of the timeline, as somebody who wants all steps reads them.
  const more = page.getByRole("button", { name: "Read more steps" });
  while (await more.count()) await more.click().catch(() => {});
  await page.getByText(`${STEPS} of ${STEPS} steps`).waitFor();
  const result = await page.evaluate(async () => {
    const long = [];
    new PerformanceObserver((list) => long.push(...list.getEntries().map((one) => one.duration))).observe({
      type: "longtask",
    });
    const scroll = document.querySelector(".bars-scroll");
    let rows = 0;
    for (let step = 0; step < 120; step += 1) {
      scroll.scrollTop += scroll.scrollHeight / 120;
      await new Promise((done) => requestAnimationFrame(done));
      rows = Math.max(rows, document.querySelectorAll(".bar-row").length);
    }
    return { rows, longest: Math.max(0, ...long), count: long.length };
  });
  show("rows in the DOM while scrolling, at most", result.rows);
  show("tasks over 50 ms while scrolling", `${result.count} (longest ${ms(result.longest)})`);
  await page.close();
}

async function manyRuns() {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  await page.goto(`${origin}/ui/runs?workflow=hello`);
  await page.locator(".run-row").first().waitFor();
  show(`list over ${RUNS} runs: first rows shown after`, ms(await page.evaluate(() => performance.now())));
  const heap = () =>
    page.evaluate(() => {
      globalThis.gc();
      return performance.memory.usedJSHeapSize / 1024 / 1024;
    });
  const scroll = async (times) => {
    for (let step = 0; step < times; step += 1) {
      await page.evaluate(() => {
        const list = document.querySelector(".runs");
        list.scrollTop = list.scrollHeight;
      });
      await wait(60);
    }
  };
  const before = await heap();
  await scroll(60);
  const middle = await heap();
  await scroll(200);
  const after = await heap();
  const rows = await page.locator(".run-row").count();
  show(
    "JavaScript heap before, after 60 and 260 scrolls to the end",
    [before, middle, after].map((mb) => `${mb.toFixed(1)} MB`).join(", "),
  );
  show("rows in the DOM", rows);
  await page.close();
}

async function commits() {
  const page = await browser.newPage();
  const times = [];
  for (let round = 0; round < 7; round += 1) {
    const id = `visible-${round}`;
    const at = `${server.origin}/api/workflows/order/instances`;
    const send = (url, body) =>
      fetch(url, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(body),
      });
    await send(at, { id, params: 1 });
    await page.goto(`${origin}/ui/runs/order/${id}`);
    await page.locator(".run-head .s-waiting").waitFor();
    await page.locator(".pill.p-live").waitFor();
    const seenAt = page.evaluate(
      () =>
        new Promise((done) => {
          const look = () => {
            if (!document.querySelector(".run-head .s-complete")) return;
            observer.disconnect();
            done(performance.timeOrigin + performance.now());
          };
          const observer = new MutationObserver(look);
          observer.observe(document.body, {
            subtree: true,
            childList: true,
            characterData: true,
            attributes: true,
          });
          look();
        }),
    );
    await send(`${at}/${id}/events`, { type: "approval", payload: true });
    const sent = performance.timeOrigin + performance.now();
    times.push((await seenAt) - sent);
  }
  show("event accepted to the end of the run shown, median of 7", ms(median(times)));
  show("the slowest of them", ms(Math.max(...times)));
  await page.close();
}

async function tabs() {
  const context = await browser.newContext();
  const pages = [];
  for (let tab = 0; tab < 20; tab += 1) {
    const page = await context.newPage();
    await page.goto(`${origin}/ui/runs/order/visible-${tab % 7}`);
    await page.locator(".run-head").waitFor();
    pages.push(page);
  }
  await wait(3000);
  show("open streams of 20 tabs", seen.streams);
  for (const page of pages) {
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { get: () => true });
      Object.defineProperty(document, "visibilityState", { get: () => "hidden" });
      document.dispatchEvent(new Event("visibilitychange"));
    });
  }
  await wait(2000);
  const before = seen.requests;
  await wait(10_000);
  show("requests of 20 hidden tabs in 10 s", seen.requests - before);
  show("open streams of 20 hidden tabs", seen.streams);
  await context.close();
}

function size() {
  const dist = fileURLToPath(new URL("../dist/", import.meta.url));
  const files = [
    "index.html",
    "theme.js",
    "icon.svg",
    // The server has some of them packed as well.
    ...readdirSync(`${dist}assets`)
      .filter((name) => !name.endsWith(".br"))
      .map((name) => `assets/${name}`),
  ];
  let [plain, small] = [0, 0];
  for (const file of files) {
    const bytes = readFileSync(dist + file);
    plain += bytes.length;
    small += brotliCompressSync(bytes).length;
  }
  show("assets", `${Math.round(plain / 1024)} KB, with brotli ${Math.round(small / 1024)} KB`);
}

try {
  size();
  await firstPaint();
  await manySteps();
  await manyRuns();
  await commits();
  await tabs();
} finally {
  await browser.close();
  proxy.closeAllConnections();
  proxy.close();
  server.stop();
}
