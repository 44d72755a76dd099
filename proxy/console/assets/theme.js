// Runs before the page is shown, so that it never flashes in the other colours.
(() => {
  "use strict";
  const root = document.documentElement;
  try {
    const chosen = localStorage.getItem("duemq-theme");
    if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  } catch { /* no storage: the system's colours */ }
})();
