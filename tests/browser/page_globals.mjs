// What the page's modules read of a browser as they are loaded, and the page's modules themselves.
import { pathToFileURL } from "node:url";

globalThis.location = new URL("http://localhost/sessions");
globalThis.addEventListener = () => {};
globalThis.matchMedia = () => ({ matches: false });
globalThis.IntersectionObserver = class {};

/** Import a module of the page; the environment names the folder. */
export const page = (name) => import(new URL(`page/${name}`, `${pathToFileURL(process.env.PAGE_MODULES)}/`));
