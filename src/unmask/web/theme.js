// @ts-check
// Light, dark, or as the system says. The choice is kept where the browser lets the page keep it.

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const KEY = "unmask-theme";

/** @param {HTMLElement} button */
export function themeButton(button) {
  let theme = kept() ?? "auto";
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    document.dispatchEvent(new Event("theme"));
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    keep(theme);
    apply();
  });
  apply();
}

// In a frame without an origin, as notebooks have it, storage is an error.
function kept() {
  try {
    const found = window.localStorage.getItem(KEY);
    return found !== null && found in NEXT ? found : null;
  } catch {
    return null;
  }
}

function keep(theme) {
  try {
    window.localStorage.setItem(KEY, theme);
  } catch {
    return;
  }
}
