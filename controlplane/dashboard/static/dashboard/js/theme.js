/* Runs before the first paint: the remembered theme, if one was chosen. */
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("tonnage-theme");
  } catch {
    return;
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
