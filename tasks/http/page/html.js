// The templates and hooks that all modules render with. Values become text nodes and attributes, never markup.
import { Component, Fragment, h, render } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
export { Component, Fragment, render };

/** Make virtual nodes of a template: html`<p>${text}</p>`. */
export const html = htm.bind(h);
