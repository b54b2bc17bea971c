// Prints each element of a page that is wider than its column, in a window of 1300 and of 400 pixels. At 1300 pixels, code and
// tables must also fit without scrolling. Arguments: the site's directory, and its pages.
import path from 'node:path';
import { pathToFileURL } from 'node:url';

import chromium from '@sparticuz/chromium';
import { chromium as playwright } from 'playwright-core';

const [site, ...pages] = process.argv.slice(2);
const browser = await playwright.launch({ executablePath: await chromium.executablePath(), args: chromium.args });
const tab = await browser.newPage();
// A file's page has no network, and needs none.
await tab.route(/^https?:/, (route) => route.abort());
let found = 0;
for (const width of [1300, 400]) {
  await tab.setViewportSize({ width, height: 900 });
  for (const page of pages) {
    await tab.goto(pathToFileURL(path.join(site, page)).href, { waitUntil: 'load' });
    const wide = await tab.evaluate((mayScroll) => {
      const column = document.querySelector('main')?.getBoundingClientRect();
      const name = (element) => `${element.tagName.toLowerCase()} "${element.textContent.trim().slice(0, 60)}"`;
      const scrolls = (element) => !mayScroll && element.scrollWidth > element.clientWidth + 1;
      const within = (element) => element.closest('pre, .table-wrapper') !== null;
      return [...document.querySelectorAll('main *')]
        .filter((element) => (element.matches('pre > code, .table-wrapper') ? scrolls(element) : !within(element)
          && element.getBoundingClientRect().right > column.right + 1))
        .map(name);
    }, width < 1000);
    for (const element of wide) {
      console.log(`${page}, ${width} pixels: ${element.replaceAll('\n', ' ')}`);
      found += 1;
    }
  }
}
await browser.close();
process.exit(found === 0 ? 0 : 1);
