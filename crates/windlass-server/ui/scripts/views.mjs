// Opens every view and dialog of the dashboard in Chromium, on the example `showcase` with data of all models, at two
// widths and in both themes. A console error, a refused resource, a script that a user value starts, text that
// overflows the page or a finding of axe fails. With a folder as argument, it also writes screenshots there.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { startShowcase } from "./showcase.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const shots = process.argv[2];
const problems = [];
const showcase = await startShowcase();
const empty = await startShowcase("0", "0", "empty");
const closed = await startShowcase("0", "0", "keys");
const { origin } = showcase;

// Each view, and a text that it shows when its data is there.
const views = [
  ["overview", "", "Workflows"],
  ["runs", "runs", "hello-1"],
  ["runs-filtered", 'runs?status=["waiting"]', "order-1"],
  ["run", "runs/order/order-1", "approval"],
  ["run-step", "runs/hello/hello-1?step=compose", "Hello, Ada!"],
  ["run-people", "runs/expense/expense-1", "Open in the inbox"],
  ["graph", "runs/family/family-1?tab=graph", "greet"],
  ["graph-folded", "runs/fan-out/fan-1?tab=graph", "square-#"],
  ["graph-document", "runs/doc:invoice/i-2?tab=graph", "State submitted"],
  ["agent", "runs/ask/ask-1?tab=agent", "You said:"],
  ["ledger", "runs/hello/hello-1?tab=ledger", "workflow.completed"],
  ["corpus", "runs?workflow=broken", "broken-10"],
  ["data", "runs/hello/hello-xss?tab=data", "<img src=x"],
  ["logs", "runs/hello/hello-1?tab=logs", "greeting Ada"],
  ["inbox", "inbox", "train tickets"],
  ["batches", "batches", "ask/ask-1"],
  ["documents", "documents?type=invoice&id=i-2", "Audit"],
  ["definition", "definitions?type=invoice", "Budget owner"],
  ["definition-changes", "definitions?type=invoice&part=changes", "by the definition"],
  ["slot-editor", "definitions?type=invoice&part=editor", "The draft compiles"],
  ["definition-versions", "definitions?type=invoice&part=versions", "Version 1"],
  ["simulate", "definitions?type=invoice&part=simulate", "Scenario"],
  ["expressions", "definitions?type=invoice&part=expressions", "Try an expression"],
  ["health", "health", "invoice"],
  ["workers", "workers", "Drain"],
  ["dead-letters", "dead-letters", "the scale is broken"],
  ["schedules", "schedules", "nightly"],
  ["webhooks", "webhooks", "endpoint"],
  ["records", "records?collection=carts&id=cart-1", "12345678901234567890.1"],
  ["settings", "settings", "API keys"],
  ["charts-of-a-day", "?span=day", "last 24 hours"],
  ["collections", "records", "carts"],
  ["not-found", "nothing/here", "There is no such page"],
];

const press = (name) => (page) => page.getByRole("button", { name, exact: true }).first().click();
// Each dialog: the view that opens it, what opens it, and a text that it shows.
const dialogs = [
  ["palette", "", (page) => page.keyboard.press("Control+k"), "Go to"],
  ["keys", "", (page) => page.keyboard.press("?"), "Keys"],
  ["new-run", "runs", press("New run"), "Workflow"],
  ["dry-run", "runs?workflow=flaky", press("Dry run"), "match"],
  ["save-view", "runs", (page) => page.getByLabel("Saved views").selectOption("save"), "Save this view"],
  ["act", "runs/order/order-1", press("Terminate"), "ends at once"],
  ["event", "runs/order/order-1", press("Send event"), "Type"],
  ["new-document", "documents?type=invoice", press("New document"), "Content"],
  ["edit-document", "documents?type=invoice&id=i-c0", press("Edit"), "Reason"],
  ["schedule", "schedules", press("New schedule"), "Workflow"],
  ["limit", "workers", press("New limit"), "Slots"],
  ["key", "settings", press("New key"), "Scopes"],
];

async function check(browser, width, theme) {
  const context = await browser.newContext({
    viewport: { width, height: width > 800 ? 800 : 844 },
    colorScheme: theme,
    reducedMotion: "reduce",
    bypassCSP: false,
  });
  const open = async (name, url, act) => {
    const at = `${name} at ${width} px, ${theme}`;
    const page = await context.newPage();
    const note = (what) => problems.push(`${at}: ${what}`);
    page.on("console", (message) => message.type() === "error" && note(`console: ${message.text()}`));
    page.on("pageerror", (error) => note(`error: ${error.message}`));
    await page.goto(url);
    await act(page, note).catch((error) => note(String(error.message ?? error).slice(0, 300)));
    await inspect(page, note);
    if (shots) await page.screenshot({ path: `${shots}/${name}-${width}-${theme}.png` });
    await page.close();
  };
  for (const [name, path, text] of views) {
    await open(name, `${origin}/ui/${path}`, async (page, note) => {
      await shows(page, note, text);
      if (name !== "inbox") return;
      await page.locator(".inbox a").first().click();
      await page.getByText("What it is about").waitFor();
    });
  }
  for (const [name, path, act, text] of dialogs) {
    await open(`dialog-${name}`, `${origin}/ui/${path}`, async (page) => {
      await page.locator("h1").first().waitFor();
      await act(page);
      await page.locator("dialog[open]").getByText(text).first().waitFor({ timeout: 10_000 });
    });
  }
  await open("first-run", `${empty.origin}/ui/`, (page, note) => shows(page, note, "No run yet"));
  // Without a session the first answers are refused, which the browser reports as errors.
  const signIn = async (page, note) => {
    await shows(page, note, "Sign in");
    await page.getByLabel("API key").fill("wl_nothing");
    await page.keyboard.press("Enter");
    await page.getByRole("alert").waitFor();
    const refused = "the server responded with a status of 401";
    for (let index = problems.length - 1; index >= 0; index -= 1) {
      if (problems[index].includes(refused)) problems.splice(index, 1);
    }
  };
  await open("sign-in", `${closed.origin}/ui/`, signIn);
  await context.close();
}

async function shows(page, note, text) {
  await page
    .waitForFunction((wanted) => document.body.textContent.includes(wanted), text, { timeout: 20_000 })
    .catch(() => note(`does not show ${JSON.stringify(text)}`));
}

async function inspect(page, note) {
  if (await page.evaluate(() => window.__xss === 1)) note("a user value ran as a script");
  const over = await page.evaluate(() => {
    const dialog = document.querySelector("dialog[open]");
    const beyond = dialog ? dialog.scrollWidth - dialog.clientWidth : 0;
    return Math.max(document.documentElement.scrollWidth - window.innerWidth, beyond);
  });
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
  for (const server of [showcase, empty, closed]) server.stop();
}
for (const problem of problems) console.error(problem);
console.log(problems.length === 0 ? "every view is in order" : `${problems.length} problems`);
process.exit(problems.length === 0 ? 0 : 1);
