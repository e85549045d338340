import type { Capability } from '../contracts/models.ts'

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

const THINKING =
  /<think>|<\/think>|enable_thinking|reasoning_content|reasoning_effort|\[THINK\]|<seed:think>|<\|channel\|?>(analysis|thought)/

/** Returns whether a chat template supports tools and thinking. */
export function templateCapabilities(template = ''): Capability[] {
  const capabilities: Capability[] = []
  // Only variables matter, not text or strings.
  if (templateCode(template).some(code => /(?<!\.)\btools\b/.test(withoutStrings(code)))) capabilities.push('tools')
  if (THINKING.test(template)) capabilities.push('thinking')
  return capabilities
}
