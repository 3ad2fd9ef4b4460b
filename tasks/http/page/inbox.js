import { html } from "./html.js";
export const Inbox = () => html`<h1>Inbox</h1>`;
