// "Select all" of an export in the admin console; its own inline handler is refused by the content security policy.
document.querySelectorAll("input.select-toggle").forEach((toggle) => {
  toggle.addEventListener("change", () => {
    document.querySelectorAll('.selectable-field-export-row input[type="checkbox"]:not(.select-toggle)').forEach((box) => {
      box.checked = toggle.checked;
    });
  });
});
