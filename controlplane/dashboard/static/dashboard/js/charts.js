/* Draws the figures that the server built, and recolours them when the theme changes. */
(() => {
  const config = {
    displaylogo: false,
    responsive: true,
    displayModeBar: "hover",
    modeBarButtonsToRemove: [
      "zoom2d", "pan2d", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d",
    ],
  };
  const root = document.documentElement;

  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  const recolour = (value, map) => {
    if (typeof value === "string") return map[value] ?? value;
    if (Array.isArray(value)) return value.map((item) => recolour(item, map));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, recolour(item, map)]));
    }
    return value;
  };

  const draw = (plot, asDark) => {
    const source = document.getElementById(plot.dataset.source);
    if (!source || !window.Plotly) return;
    const { figure, dark } = JSON.parse(source.textContent);
    const coloured = recolour(figure, asDark ? dark : {});
    plot.querySelector(".no-script")?.remove();
    coloured.layout.autosize = true;
    coloured.layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: "#8d9ba9", activecolor: "#8d9ba9" };
    Plotly.react(plot, coloured.data, coloured.layout, {
      ...config,
      toImageButtonOptions: { filename: plot.dataset.name, scale: 2 },
    }).then(() => followPoints(plot));
  };

  /* A point that knows a page of its own opens it. */
  const followPoints = (plot) => {
    if (plot.dataset.follows) return;
    plot.dataset.follows = "yes";
    const page = (event) => event.points?.[0]?.customdata;
    const local = (url) => typeof url === "string" && url.startsWith("/");
    plot.on("plotly_click", (event) => local(page(event)) && location.assign(page(event)));
    plot.on("plotly_hover", (event) => plot.classList.toggle("opens", local(page(event))));
    plot.on("plotly_unhover", () => plot.classList.remove("opens"));
  };

  const drawAll = (scope, asDark = isDark()) => {
    for (const plot of scope.querySelectorAll(".plot[data-source]")) draw(plot, asDark);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chart-view]");
    if (!button) return;
    const chart = button.closest(".chart");
    const table = button.dataset.chartView === "table";
    chart.querySelector(".plot").hidden = table;
    chart.querySelector(".chart-table").hidden = !table;
    for (const other of button.parentElement.querySelectorAll("[data-chart-view]")) {
      other.setAttribute("aria-pressed", String(other === button));
    }
    if (!table) window.Plotly?.Plots.resize(chart.querySelector(".plot"));
  });

  /* What a link on the page leads to is unfolded. */
  const unfold = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const folded = target && (target.matches("details") ? target : target.querySelector(":scope > details"));
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", unfold);

  document.addEventListener("DOMContentLoaded", () => {
    drawAll(document);
    unfold();
  });
  document.addEventListener("themechange", (event) => drawAll(document, event.detail.dark));
  document.addEventListener("htmx:afterSwap", (event) => drawAll(event.detail.target.parentElement ?? document));
})();
