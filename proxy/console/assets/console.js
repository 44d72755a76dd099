// What every page has: the colour switch, local times, selections, dialogs. Pages work without it.
(() => {
  "use strict";
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);

  // --- colours ---
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = $("theme");
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`); };
  if (theme) {
    theme.hidden = false;
    nameTheme();
    theme.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("duemq-theme", root.dataset.theme); } catch { /* for this page only */ }
      nameTheme();
      document.dispatchEvent(new Event("theme"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); document.dispatchEvent(new Event("theme")); });
  }

  // --- times in the zone of who looks ---
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const showLocal = (within) => {
    for (const time of within.querySelectorAll("time[datetime]:not([title])")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      time.title = `${local.format(at)} (${zone})`;
      if (at.getTimezoneOffset() === 0) continue;
      const text = document.createElement("small");
      text.className = "local";
      text.textContent = local.format(at);
      time.append(text);
    }
  };

  // --- selections ---
  const boxes = () => [...document.querySelectorAll('#rows input[name="id"]')];
  const all = $("all");
  const count = () => {
    const selected = boxes().filter((box) => box.checked).length;
    const bar = document.querySelector("#selection .toolbar");
    if (!bar) return;
    $("selected").textContent = selected ? `${selected.toLocaleString("en").replaceAll(",", "\u202f")} selected` : "None selected";
    for (const button of bar.querySelectorAll("button")) button.disabled = !selected;
    if (all) { all.checked = selected > 0 && selected === boxes().length; all.indeterminate = selected > 0 && !all.checked; }
  };
  if (all) {
    all.hidden = false;
    all.addEventListener("change", () => { for (const box of boxes()) box.checked = all.checked; count(); });
  }
  document.addEventListener("change", (event) => { if (event.target.matches('#rows input[name="id"]')) count(); });

  // --- dialogs ---
  const dialog = $("dialog");
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target !== dialog) return;
    if (!dialog.open) dialog.showModal();
    (dialog.querySelector("input:not([type=hidden]), button") || dialog).focus();
  });
  dialog?.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) { event.preventDefault(); dialog.close(); }
  });
  document.addEventListener("htmx:afterSettle", () => { showLocal(document); count(); });

  // --- one press, one request ---
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    if (event.target.dataset.sent) { event.preventDefault(); return; }
    event.target.dataset.sent = "1";
  });
  addEventListener("pageshow", () => { for (const form of document.querySelectorAll("[data-sent]")) delete form.dataset.sent; count(); });

  // --- the menu of narrow windows ---
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") document.querySelector("details.menu[open]")?.removeAttribute("open"); });

  showLocal(document);
  count();
})();
