/**
 * Options as Ollama's `show` writes them: a line each, the value behind the 31st column as JSON, a line for each entry
 * of a list.
 */
export function parametersText(options: Readonly<Record<string, unknown>> | undefined): string {
  return Object.entries(options ?? {})
    .flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).map(entry => [name, entry] as const))
    .map(([name, value]) => `${name.padEnd(30)} ${JSON.stringify(value)}`)
    .join('\n')
}
