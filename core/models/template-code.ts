/** A string in a template. An unterminated one extends to the end, so that the regex does not retry inside it. */
const QUOTED = /'(?:\\.?|[^'\\])*(?:'|$)|"(?:\\.?|[^"\\])*(?:"|$)/gs

/** Returns the pieces of code of a chat template (Jinja), without its text. */
export function templateCode(template: string): string[] {
  // Each part but the last ends with code.
  const parts = template.split(/[%}]\}/).slice(0, -1)
  return parts.map(part => part.slice(part.search(/\{[%{]|$/)))
}

/** Returns a piece of code with empty strings. */
export const withoutStrings = (code: string): string => code.replace(QUOTED, "''")
