// @ts-check
// The page: a viewer where it carries traces, else the playground of the server that sent it.

import { playground } from "./play.js";
import { themeButton } from "./theme.js";
import { viewer } from "./view.js";

themeButton(document.getElementById("theme"));
const main = document.getElementById("main");
const traces = document.getElementById("traces");
if (traces) viewer(main, JSON.parse(traces.textContent));
else playground(main);
