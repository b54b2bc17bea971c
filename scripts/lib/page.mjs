// Loads a page, saves a screenshot, and prints what fails: errors of its console and scripts, and requests without success. A
// request to another host fails. Arguments: the URL, the PNG file, the window's size (default: 1300x900), and a text that the page
// is to show within 20 s.
import chromium from '@sparticuz/chromium';
import { chromium as playwright } from 'playwright-core';

const [url, png, size = '1300x900', text] = process.argv.slice(2);
const [width, height] = size.split('x').map(Number);
const browser = await playwright.launch({ executablePath: await chromium.executablePath(), args: chromium.args });
let failures = 0;
const failed = (...what) => {
  console.log(...what);
  failures += 1;
};
try {
  const tab = await browser.newPage({ viewport: { width, height } });
  await tab.route((requested) => requested.host !== new URL(url).host, (route) => route.abort());
  tab.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) failed(`console ${message.type()}: ${message.text()}`);
  });
  tab.on('pageerror', (error) => failed(`script error: ${error.message}`));
  tab.on('requestfailed', (request) => failed(`request failed: ${request.url()}: ${request.failure()?.errorText}`));
  tab.on('response', (response) => {
    if (response.status() >= 400) failed(`status ${response.status()}: ${response.url()}`);
  });
  await tab.goto(url, { waitUntil: 'load' });
  // Scripts run on after the load, and a stream of events never ends.
  if (text) await tab.getByText(text).first().waitFor({ timeout: 20000 });
  else await tab.waitForTimeout(2000);
  await tab.screenshot({ path: png, fullPage: true });
} finally {
  await browser.close();
}
process.exit(failures === 0 ? 0 : 1);
