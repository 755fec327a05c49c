/* Behaviour of the pages: theme switch, popovers, GPU map keys, logs, toasts, tables as CSV. */
(() => {
  const root = document.documentElement;

  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  const announceTheme = () => document.dispatchEvent(new CustomEvent("themechange", { detail: { dark: isDark() } }));

  const setTheme = (theme) => {
    root.dataset.theme = theme;
    try {
      localStorage.setItem("tonnage-theme", theme);
    } catch {
      /* Private window: the choice lasts for this page. */
    }
    announceTheme();
  };

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (!root.dataset.theme) announceTheme();
  });

  /* Paper is white: charts are drawn light for it, whatever the theme. */
  addEventListener("beforeprint", () =>
    document.dispatchEvent(new CustomEvent("themechange", { detail: { dark: false } })),
  );
  addEventListener("afterprint", announceTheme);

  let opener = null;
  const placePopover = (event) => {
    const box = event.target;
    if (event.newState === "closed" && box.id === "how") opener?.focus({ preventScroll: true });
    if (event.newState !== "open" || !box.classList?.contains("popover")) return;
    const button = box.id === "how" ? opener : document.querySelector(`[popovertarget="${box.id}"]`);
    if (!button) return;
    const at = button.getBoundingClientRect();
    const size = box.getBoundingClientRect();
    const left = Math.max(12, Math.min(at.left - 12, innerWidth - size.width - 12));
    const below = at.bottom + 6 + size.height < innerHeight;
    box.style.left = `${left}px`;
    box.style.top = `${Math.max(12, below ? at.bottom + 6 : at.top - size.height - 6)}px`;
  };
  document.addEventListener("toggle", placePopover, true);

  /* A figure that was pressed: its arithmetic has come and opens beside it. */
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt.classList.contains("how")) opener = event.detail.elt;
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const box = event.detail.target;
    if (box.id !== "how") return;
    if (box.matches(":popover-open")) box.hidePopover();
    box.showPopover();
  });

  const csvCell = (cell) => {
    const text = cell.dataset.value ?? cell.textContent.trim();
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  const downloadCsv = (button) => {
    const table = document.getElementById(button.dataset.csv);
    const lines = [...table.rows].map((row) => [...row.cells].map(csvCell).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.download = `${button.dataset.csv}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  /* Outside HTTPS and localhost there is no clipboard: the text is selected instead, for Ctrl+C. */
  const copyText = async (button) => {
    const source = document.getElementById(button.dataset.copy);
    getSelection().selectAllChildren(source);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Press Ctrl+C";
    }
  };

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-theme-switch], [data-csv], [data-copy], [data-dismiss], [data-add-row], [data-print]");
    if (!target) return;
    if ("themeSwitch" in target.dataset) setTheme(isDark() ? "light" : "dark");
    else if (target.dataset.csv) downloadCsv(target);
    else if (target.dataset.copy) copyText(target);
    else if ("dismiss" in target.dataset) target.closest(target.dataset.dismiss || ".toast").remove();
    else if (target.dataset.addRow) addRow(target.dataset.addRow);
    else if ("print" in target.dataset) print();
  });

  /* A menu closes when something in it or elsewhere is chosen, and on Escape, which returns to its button. */
  const openMenu = () => document.querySelector("details.drop[open]");
  document.addEventListener("click", (event) => {
    const menu = openMenu();
    if (menu && !event.target.closest(".drop > summary")) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && openMenu();
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });

  /* Django formsets: one more row from the empty one. */
  const addRow = (prefix) => {
    const total = document.getElementById(`id_${prefix}-TOTAL_FORMS`);
    const rows = document.getElementById(`${prefix}-rows`);
    const blank = document.getElementById(`${prefix}-blank`).content.cloneNode(true);
    const number = total.value;
    for (const element of blank.querySelectorAll("[name], [id], [for]")) {
      for (const key of ["name", "id", "for"]) {
        if (element.hasAttribute(key)) element.setAttribute(key, element.getAttribute(key).replace("__prefix__", number));
      }
    }
    total.value = Number(number) + 1;
    rows.append(blank);
    rows.lastElementChild.querySelector("select, input")?.focus();
  };

  /* GPU map: one tab stop, arrows move, Enter pins. */
  const step = { ArrowRight: 1, ArrowLeft: -1 };
  document.addEventListener("keydown", (event) => {
    const node = event.target.closest?.(".map .node");
    if (!node) return;
    const nodes = [...node.closest(".gpu-map").querySelectorAll(".node")];
    const at = nodes.indexOf(node);
    let next = at + (step[event.key] || 0);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const here = node.getBoundingClientRect();
      const order = event.key === "ArrowDown" ? nodes.slice(at + 1) : nodes.slice(0, at).reverse();
      const away = (other) => {
        const box = other.getBoundingClientRect();
        return event.key === "ArrowDown" ? box.top >= here.bottom - 2 : box.bottom <= here.top + 2;
      };
      const first = order.find(away);
      if (first) {
        const row = first.getBoundingClientRect().top;
        const same = order.filter((other) => Math.abs(other.getBoundingClientRect().top - row) < 4);
        const gap = (other) => Math.abs(other.getBoundingClientRect().left - here.left);
        next = nodes.indexOf(same.reduce((best, other) => (gap(other) < gap(best) ? other : best)));
      }
    } else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = nodes.length - 1;
    if (next === at || !nodes[next]) return;
    event.preventDefault();
    node.tabIndex = -1;
    nodes[next].tabIndex = 0;
    nodes[next].focus();
  });

  const settle = (scope) => {
    for (const log of scope.querySelectorAll?.(".log[data-tail]") ?? []) log.scrollTop = log.scrollHeight;
    for (const pinned of scope.querySelectorAll?.("[data-pins]") ?? []) {
      for (const node of document.querySelectorAll(".map .node[aria-current]")) node.removeAttribute("aria-current");
      document.getElementById(pinned.dataset.pins)?.setAttribute("aria-current", "true");
    }
  };
  document.addEventListener("htmx:afterSwap", (event) => settle(event.detail.target.parentElement ?? document));

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit-on-change]")) event.target.form.requestSubmit();
    if (event.target.matches("[data-shows]")) showFields(event.target);
  });

  /* Fields that belong to one choice only: data-when="name=value|value". */
  const showFields = (control) => {
    for (const field of control.form.querySelectorAll(`[data-when^="${control.name}="]`)) {
      field.hidden = !field.dataset.when.split("=")[1].split("|").includes(control.value);
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    settle(document);
    for (const control of document.querySelectorAll("[data-shows]")) showFields(control);
  });
})();
