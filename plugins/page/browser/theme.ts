// Runs before anything is painted, so that the page does not flash in the other colours.
try {
  const theme = localStorage.getItem('corral-theme')
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme
} catch {
  // A browser that keeps nothing for this page shows the system's colours.
}
