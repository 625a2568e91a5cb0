// Writes the screenshots of docs/images from the example `showcase` with the values of a usual day.
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { startShowcase } from "./showcase.mjs";

const folder = fileURLToPath(new URL("../../../../docs/images/", import.meta.url));
// The name of the file, the view, a text that it shows, and what is done before the picture.
const images = [
  ["overview", "", "Workflows"],
  ["runs", "runs", "hello-1"],
  ["run", "runs/order/order-1", "approval"],
  ["step", "runs/hello/hello-1?step=compose", "Hello, Ada!"],
  ["ledger", "runs/hello/hello-1?tab=ledger", "workflow.completed"],
  ["inbox", "inbox", "train tickets", openRequest],
  ["graph", "runs/doc:invoice/i-2?tab=graph", "State submitted"],
  ["editor", "definitions?type=invoice&part=editor", "The draft compiles"],
];

async function openRequest(page) {
  await page.getByRole("link", { name: /train tickets/ }).click();
  await page.getByText("What it is about").waitFor();
}

const showcase = await startShowcase("0", "0", "usual");
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox"],
});
try {
  const options = { viewport: { width: 1280, height: 800 }, colorScheme: "light", reducedMotion: "reduce" };
  const context = await browser.newContext({ ...options, timezoneId: "UTC" });
  for (const [name, path, text, act] of images) {
    const page = await context.newPage();
    await page.goto(`${showcase.origin}/ui/${path}`);
    await page.waitForFunction((wanted) => document.body.textContent.includes(wanted), text);
    await act?.(page);
    await page.locator(".pill.p-live").waitFor();
    await page.locator(".loading").first().waitFor({ state: "detached" });
    await page.screenshot({ path: `${folder}dashboard-${name}.png` });
    console.log(`dashboard-${name}.png`);
    await page.close();
  }
} finally {
  await browser.close();
  showcase.stop();
}
