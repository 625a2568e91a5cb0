// Before the first paint, so that the page does not flash in the wrong colours.
try {
  const theme = localStorage.getItem("windlass.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the page follows the system.
}
