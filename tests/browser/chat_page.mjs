// The example's page in a document without a browser: node chat_page.mjs PAGE URL TOKEN AGENT. It prints what is shown.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { JSDOM } from "jsdom";

const [page, url, token, agent] = process.argv.slice(2);
const html = readFileSync(page, "utf8");

function open(hash) {
  const address = `${url}/chat.html?${new URLSearchParams({ api: url, token, agent })}${hash}`;
  const beforeParse = (window) => Object.assign(window, { fetch, TextDecoder, AbortController });
  return new JSDOM(html, { url: address, runScripts: "dangerously", beforeParse }).window;
}

let window = open("");
const shown = () => ({
  messages: [...window.document.querySelectorAll("#messages > div")].map((each) => [each.className, each.textContent]),
  buttons: [...window.document.querySelectorAll("#requests button")].map((each) => each.textContent),
  session: window.location.hash.slice(1),
  state: window.document.getElementById("state").textContent,
});

// A line is a command: {"say": text}, {"click": label}, {"reload": true}; each gets what is shown as a line.
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.say) {
    window.document.getElementById("text").value = command.say;
    window.document.getElementById("form").dispatchEvent(new window.Event("submit", { cancelable: true }));
  }
  if (command.click) {
    [...window.document.querySelectorAll("#requests button")].find((each) => each.textContent === command.click).click();
  }
  if (command.reload) {
    const hash = window.location.hash;
    window.close();
    window = open(hash);
  }
  await new Promise((resolve) => setTimeout(resolve, 100));
  console.log(JSON.stringify(shown()));
}
process.exit(0);
