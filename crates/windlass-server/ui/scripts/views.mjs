// Opens every view of the dashboard in Chromium, on a `windlass dev` with data, at two widths and in both
// themes. A console error, a refused resource, a script that a user value starts, text that overflows the
// page or a finding of axe fails. With a folder as argument, it also writes screenshots there.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { chromium } from "playwright-core";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const binary = process.env.WINDLASS_BIN ?? "../../../target/debug/windlass";
const shots = process.argv[2];
const XSS = '<img src=x onerror="window.__xss=1"><script>window.__xss=1</script>';
const problems = [];

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

const port = await freePort();
const origin = `http://127.0.0.1:${port}`;
const server = spawn(binary, ["dev", "--ephemeral", "--port", String(port)], { stdio: "ignore" });

async function until(what, ask) {
  const deadline = Date.now() + 60_000;
  for (;;) {
    try {
      const found = await ask();
      if (found) return found;
    } catch {
      // Not yet.
    }
    if (Date.now() > deadline) throw new Error(`timeout while waiting for ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

async function call(method, path, body) {
  const response = await fetch(`${origin}/api${path}`, {
    method,
    headers: { "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
  return response.status === 204 ? null : response.json();
}

const run = (workflow, id, params, labels) =>
  call("POST", `/workflows/${workflow}/instances`, { id, params, labels });

async function seed() {
  await until("the server", () => fetch(`${origin}/healthz`).then((answer) => answer.ok));
  await run("hello", "hello-1", "Ada");
  await run("hello", "hello-xss", XSS, { note: XSS });
  await run("order", "order-1", { total: 12.5, customer: XSS });
  await run("flaky", "flaky-1", null);
  await run("fan-out", "fan-1", null);
  await run("parcel", "parcel-1", null).catch(() => {});
  await run("order", "order-2", 7);
  await call("POST", "/workflows/order/instances/order-2/events", { type: "note", payload: { text: XSS } });
  await call("PUT", "/schedules/nightly", { workflow: "hello", cron: "0 3 * * *", params: XSS });
  await call("PUT", "/schedules/often", { workflow: "hello", everyMs: 3_600_000 });
  await fetch(`${origin}/api/records/carts/cart-1?term=owner:ada&keep=true`, {
    method: "PUT",
    headers: { "content-type": "application/json", "if-none-match": "*" },
    body: `{"total":12345678901234567890.10,"note":${JSON.stringify(XSS)}}`,
  });
  await until("a run to end", async () => (await call("GET", "/runs?status=complete")).runs.length > 0);
}

// Each view, and a text that it shows when its data is there.
const views = [
  ["overview", "", "Workflows"],
  ["runs", "runs", "hello-1"],
  ["runs-filtered", 'runs?status=["waiting"]', "order-1"],
  ["run", "runs/order/order-1", "approval"],
  ["run-step", "runs/hello/hello-1", "steps"],
  ["ledger", "runs/hello/hello-1?tab=ledger", "workflow.completed"],
  ["data", "runs/hello/hello-xss?tab=data", "<img src=x"],
  ["logs", "runs/hello/hello-1?tab=logs", "debug"],
  ["workers", "workers", "Drain"],
  ["dead-letters", "dead-letters", "Dead letters"],
  ["schedules", "schedules", "nightly"],
  ["webhooks", "webhooks", "endpoint"],
  ["records", "records?collection=carts&id=cart-1", "12345678901234567890.10"],
  ["settings", "settings", "API keys"],
  ["not-found", "nothing/here", "There is no such page"],
];

async function check(browser, width, theme) {
  const context = await browser.newContext({
    viewport: { width, height: width > 800 ? 800 : 844 },
    colorScheme: theme,
    reducedMotion: "reduce",
    bypassCSP: false,
  });
  for (const [name, path, text] of views) {
    const at = `${name} at ${width} px, ${theme}`;
    const page = await context.newPage();
    const note = (what) => problems.push(`${at}: ${what}`);
    page.on("console", (message) => message.type() === "error" && note(`console: ${message.text()}`));
    page.on("pageerror", (error) => note(`error: ${error.message}`));
    await page.goto(`${origin}/ui/${path}`);
    await page
      .waitForFunction((wanted) => document.body.textContent.includes(wanted), text, { timeout: 20_000 })
      .catch(() => note(`does not show ${JSON.stringify(text)}`));
    if (name === "run-step") await page.locator(".bar-row").first().click();
    if (await page.evaluate(() => window.__xss === 1)) note("a user value ran as a script");
    const over = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (over > 0) note(`is ${over} px too wide`);
    // The policy of the page refuses scripts of others; the debugger may run them.
    await page.evaluate(axe);
    const found = await page.evaluate(async () => (await window.axe.run()).violations);
    for (const one of found) {
      note(
        `axe ${one.id}: ${one.help}: ${one.nodes
          .slice(0, 3)
          .map((node) => node.html.slice(0, 160))
          .join(" | ")}`,
      );
    }
    if (shots) await page.screenshot({ path: `${shots}/${name}-${width}-${theme}.png` });
    await page.close();
  }
  await context.close();
}

// The palette and the views by keyboard alone.
async function keyboard(browser) {
  const page = await browser.newPage();
  await page.goto(`${origin}/ui/`);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("s");
  await page.getByRole("heading", { name: "Schedules" }).waitFor();
  await page.keyboard.press("Control+k");
  await page.keyboard.type("hello-1");
  await page.getByRole("option", { name: /hello\/hello-1/ }).waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "hello/hello-1" }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog", { name: "Keys" }).waitFor({ state: "detached" });
  await page.close();
}

let browser;
try {
  await seed();
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox"],
  });
  await keyboard(browser);
  for (const width of [1280, 390]) for (const theme of ["light", "dark"]) await check(browser, width, theme);
} catch (error) {
  problems.push(String(error.stack ?? error));
} finally {
  await browser?.close();
  server.kill("SIGINT");
}
for (const problem of problems) console.error(problem);
console.log(problems.length === 0 ? "every view is in order" : `${problems.length} problems`);
process.exit(problems.length === 0 ? 0 : 1);
