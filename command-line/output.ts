export function printJson(value: unknown): void {
  printText(JSON.stringify(value, undefined, 2))
}

/** Writes text and a line's end to standard output. */
export function printText(text: string): void {
  process.stdout.write(`${text}\n`)
}

/**
 * Text from outside without the control characters that could move a terminal's cursor or change its settings; line
 * breaks and tabs stay.
 */
export function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '')
}
